"""The engine's fixed sizes, derived once from the options and the model's training context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxserver.engine.prefetch_policy import PolicyName

CONTEXT_STEP = 256
"""Context sizes are rounded up to a multiple of this."""
AUTO_PARALLEL = 4


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``n_ctx`` counts the cells of all slots together, ``n_ctx_slot`` what one slot can reach."""

    n_slots: int
    n_ctx: int
    n_ctx_slot: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    cont_batching: bool
    slot_prompt_similarity: float
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool = True
    """Only asked where values are quantised; MLX's attention is always fused."""
    warmup: bool = True
    cache_ram: int = 8192
    """MiB of state stored beyond the slots; 0 stores nothing, negative is without bound."""
    cache_idle_slots: bool = True
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    swa_full: bool = False
    cache_reuse: int = 0
    """Default of a request's ``n_cache_reuse``."""
    context_shift: bool = False
    lora: tuple[str, ...] = ()
    """Paths of the adapters that are there from the start."""
    max_loras: int = 0
    """Different adapters at work in one step; 0: any number."""
    kv_events: bool = False
    cache_disk: str = ""
    """Folder of the disk tier; empty without one."""
    cache_disk_size: int = 0
    """MiB; 0 is without bound."""
    cache_disk_prefetch: PolicyName = "best-effort"
    cache_disk_timeout: int = 0
    """Milliseconds."""
    embedding: bool = False
    pooling: str = "none"
    has_logits: bool = True
    """False for encoders, which read only."""
    memory_limit: int | None = None
    """Bytes of MLX's arrays; None: no bound."""
    memory_limit_is_given: bool = True
    """Else it is an estimate, and a model that does not fit is served without one."""

    @property
    def splits_embeddings(self) -> bool:
        """Whether a prompt may be evaluated in pieces for its embedding."""
        return self.pooling == "last" and self.has_logits

    @classmethod
    def from_options(
        cls, options: Any, n_ctx_train: int, model_pooling: str = "", has_logits: bool = True
    ) -> EngineConfig:
        auto = options.parallel < 0
        n_slots = AUTO_PARALLEL if auto else options.parallel
        unified = bool(auto or options.kv_unified)
        wanted = options.ctx_size or n_ctx_train
        n_ctx, n_ctx_slot = context_sizes(wanted, n_slots, unified, n_ctx_train)
        # a causal model never has more than its context to read; nothing bounds what an encoder is sent
        n_batch = max(1, min(wanted, options.batch_size) if has_logits else options.batch_size)
        return cls(
            n_slots=n_slots,
            n_ctx=n_ctx,
            n_ctx_slot=n_ctx_slot,
            kv_unified=unified,
            n_batch=n_batch,
            n_ubatch=max(1, min(n_batch, options.ubatch_size or n_batch)),
            cont_batching=options.cont_batching,
            slot_prompt_similarity=options.slot_prompt_similarity,
            cache_type_k=options.cache_type_k,
            cache_type_v=options.cache_type_v,
            flash_attn=options.flash_attn != "off",
            warmup=options.warmup,
            cache_ram=options.cache_ram,
            cache_idle_slots=options.cache_idle_slots,
            ctx_checkpoints=options.ctx_checkpoints,
            checkpoint_min_step=options.checkpoint_min_step,
            swa_full=options.swa_full,
            cache_reuse=options.cache_reuse,
            context_shift=options.context_shift,
            lora=tuple(path for path, _ in options.lora),
            max_loras=options.max_loras,
            kv_events=options.kv_events,
            cache_disk=options.cache_disk,
            cache_disk_size=options.cache_disk_size,
            cache_disk_prefetch=options.cache_disk_prefetch,
            cache_disk_timeout=options.cache_disk_timeout,
            embedding=options.embedding,
            pooling=options.pooling or model_pooling or "none",
            has_logits=has_logits,
        )


def context_sizes(wanted: int, n_slots: int, unified: bool, n_ctx_train: int) -> tuple[int, int]:
    """Total and per-slot context as llama-server rounds them."""
    if unified:
        total = per_slot = _round_up(wanted)
    else:
        per_slot = _round_up(wanted // n_slots)
        total = per_slot * n_slots
    return total, min(per_slot, n_ctx_train)


def _round_up(n: int) -> int:
    return max(CONTEXT_STEP, -(-n // CONTEXT_STEP) * CONTEXT_STEP)
