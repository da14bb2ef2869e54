"""The messages between the event loop and the engine thread: plain data, no arrays, no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxserver.kv.identity import BASE_IDENTITY, Adapters, CacheIdentity
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.probs import Candidate as Candidate
from mlxserver.sampling.probs import TokenProbs as TokenProbs

StopReason = Literal["eos", "limit", "stop", "none"]


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt to complete.

    ``n_predict`` bounds the sampled tokens (-1: only the context does; 0 still samples one).
    ``children`` are the ids and sampling parameters of the other completions of an ``n_cmpl`` > 1
    request; they share this task's prompt evaluation and each has its own events.
    ``settings`` is opaque to the engine and shown by ``/slots`` as ``params``.
    """

    id: int
    tokens: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    n_predict: int = -1
    id_slot: int = -1
    cache_prompt: bool = True
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    return_progress: bool = False
    children: tuple[tuple[int, SamplingParams], ...] = ()
    identity: CacheIdentity = BASE_IDENTITY
    invoked: Adapters = ()
    """Adapters that evaluate the prompt from ``invoked_at`` on (aLoRA); those of ``identity`` before it."""
    invoked_at: int = 0
    settings: object = None
    is_embedding: bool = False
    """Evaluate the prompt for its embedding, or its rank, and sample nothing."""
    embd_normalize: int = 2

    @property
    def adapters(self) -> Adapters:
        """What evaluates the prompt's last token, and all that is sampled."""
        return self.invoked or self.identity.adapters

    @property
    def n_reusable(self) -> int:
        """Most tokens of the prompt that may be taken over: one is always left to evaluate."""
        n = max(0, len(self.tokens) - 1)
        return min(n, self.invoked_at) if self.invoked else n

    def adapters_at(self, position: int) -> Adapters:
        """What evaluates the token at a position of the prompt."""
        return self.identity.adapters if position < self.invoked_at else self.adapters


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt begins: ``n_past`` of its tokens were reused. ``t`` is ``time.perf_counter()``."""

    task_id: int
    slot_id: int
    n_prompt: int
    n_past: int
    t: float
    n_disk: int | None = None
    """Of ``n_past`` those that were read from disk for it; None without a disk tier."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """A chunk was evaluated; ``processed`` counts reused tokens too. Only for ``return_progress``."""

    task_id: int
    total: int
    cache: int
    processed: int
    t: float


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token (end-of-generation tokens included)."""

    task_id: int
    token: int
    t: float
    probs: TokenProbs | None = None


@dataclass(frozen=True, slots=True)
class Vectors:
    """What an embedding task gave; Finished follows. One vector, one for each token, or scores."""

    task_id: int
    vectors: tuple[list[float], ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The slot is free again. ``n_tokens`` is what it keeps: prompt + generated - 1.

    ``reason``: ``eos``, ``limit`` (n_predict or the context; then ``truncated`` tells which),
    ``stop`` (the event loop asked for it), ``none`` (an empty prompt, or an embedding).
    """

    task_id: int
    reason: StopReason
    truncated: bool
    n_tokens: int
    t: float
    shifted_after: int | None = None
    """Tokens sampled before the first context shift; None without one."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The task failed and its slot is free. ``type`` names an error of ``mlxserver.api.errors``."""

    task_id: int
    type: str
    message: str
    fields: dict[str, int] = field(default_factory=dict)
    """Further keys of the error object (n_prompt_tokens, n_ctx)."""
    is_fault_of_request: bool = False
    """A ``server_error`` of llama-server that is none."""


Event = Started | PromptProgress | Token | Vectors | Finished | Failed


@dataclass(frozen=True, slots=True)
class SlotView:
    """What ``/slots`` shows of a slot. ``task_id`` is -1 before its first task."""

    id: int
    n_ctx: int
    is_processing: bool
    task_id: int = -1
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    settings: object = None
    adapters: Adapters = ()
    """Of the slot's last task."""
    has_next_token: bool = False
    n_remain: int = -1
    n_decoded: int = 0
    prompt: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    """Both of the slot's last task; told, and shown as text, only with LLAMA_SERVER_SLOTS_DEBUG."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the start, in llama-server's meaning of each metric."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_seconds: float = 0.0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    decodes: int = 0
    busy_slots: int = 0
    """Busy slots summed over all decodes."""
    n_tokens_max: int = 0
    draft_tokens: int = 0
    draft_accepted: int = 0
    drafts: int = 0
    predicted_after_first: int = 0
    """Generated tokens without each request's first one: the numerator of ``predicted_tokens_seconds``."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The prefix trie: what it holds now, and totals since the start."""

    nbytes: int = 0
    limit: int = 0
    """Bytes; -1 without bound, 0 without a trie."""
    entries: int = 0
    snapshots: int = 0
    evictions: int = 0
    hits: int = 0
    """Prompts of which something was taken over, from wherever."""
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class DiskStats:
    """The disk tier: what it holds now, and totals since the start. Snapshots count as blocks."""

    blocks: int = 0
    nbytes: int = 0
    limit: int = -1
    """Bytes; -1 without bound."""
    written_blocks: int = 0
    written_bytes: int = 0
    removed_blocks: int = 0
    dropped_blocks: int = 0
    """Not written for want of room or because of errors."""
    errors: int = 0
    read_blocks: int = 0
    read_bytes: int = 0
    hit_blocks: int = 0
    """Read and taken over by the prompt that they were read for."""
    hit_bytes: int = 0
    wasted_blocks: int = 0
    """Read and not taken over."""
    wasted_bytes: int = 0
    prefetch_seconds: float = 0.0
    prefetches: Mapping[str, int] = field(default_factory=dict)
    """Prompts for which something was to be read, by how that ended."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes that MLX has taken."""

    active: int = 0
    """Of arrays that are alive."""
    cached: int = 0
    """Of arrays that are gone, kept for later ones."""
    peak: int = 0
    """The most that was active since the start."""


@dataclass(frozen=True, slots=True)
class AdapterCounters:
    """Totals of the tasks that used an adapter and have ended."""

    requests: int = 0
    prompt_tokens: int = 0
    """Evaluated, without those taken from the cache."""
    predicted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state after a step; immutable, so any thread may read it."""

    slots: tuple[SlotView, ...]
    counters: Counters
    deferred: int
    """Tasks that wait for a slot."""
    cache: CacheStats = CacheStats()
    disk: DiskStats | None = None
    """None without a disk tier."""
    adapters: Mapping[str, AdapterCounters] = field(default_factory=dict)
    """By the adapter's digest."""
    memory: MemoryStats = MemoryStats()
