"""Folders of Hugging Face's PEFT: ``adapter_model.safetensors``, alpha and rank for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxserver.models.lora import settings as read
from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.pairs import Factor, Pair, no_layer, paired
from mlxserver.models.lora.patterns import Patterns
from mlxserver.models.lora.targets import Target

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ENDINGS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
}
_HONOURED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    # others begin by changing the base model's weights
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}
"""Keys whose other values change what an adapter means."""
_OF_NO_MATTER = frozenset(
    "alora_invocation_tokens alpha_pattern auto_mapping base_model_name_or_path corda_config eva_config "
    "exclude_modules inference_mode layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout "
    "lora_ga_config megatron_config megatron_core peft_version qalora_group_size r rank_pattern revision "
    "runtime_config target_modules task_type use_rslora".split()
)
"""Keys that are read below, or that have done their work when an adapter is trained. Any other that is set
may change what the tensors mean: DoRA, modules_to_save, fan_in_fan_out, ..."""


def read_pairs(
    settings: Mapping[str, Any], tensors: Mapping[str, Factor], targets: Mapping[str, Target]
) -> list[Pair]:
    """Raises AdapterError for what is not plain LoRA, and for a rank that is not the announced one."""
    _refuse_others(settings)
    own_ranks, own_alphas = (read.mapping(settings, f"{key}_pattern") for key in ("rank", "alpha"))
    ranks, alphas = Patterns("rank_pattern", own_ranks), Patterns("alpha_pattern", own_alphas)
    rank, alpha = read.count(settings, "r"), read.number(settings, "lora_alpha")
    pairs = []
    for name, (a, b) in paired(tensors, _ENDINGS).items():
        path = _path(name, targets)
        if not path:
            raise no_layer(name)
        hf_path = name.removeprefix(_PREFIX)
        own_rank = read.count(own_ranks, found) if (found := ranks.find(hf_path)) else rank
        own_alpha = read.number(own_alphas, found) if (found := alphas.find(hf_path)) else alpha
        if a.shape[:1] != (own_rank,):
            raise AdapterError(
                f"tensor '{name}' has the shape {a.shape}, adapter_config.json the rank {own_rank}"
            )
        scale = own_alpha / (own_rank**0.5 if settings.get("use_rslora") else own_rank)
        pairs.append(Pair(name, path, a.transposed, b.transposed, scale))
    return pairs


def invocation(settings: Mapping[str, Any]) -> tuple[int, ...]:
    return read.tokens(settings, "alora_invocation_tokens")


def _refuse_others(settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        is_known = key in _OF_NO_MATTER or value in _HONOURED.get(key, ())
        if value and not is_known:
            raise AdapterError(f"adapter_config.json: {key[:80]} = {repr(value)[:60]} is not supported")


def _path(name: str, targets: Mapping[str, Target]) -> str:
    """mlx-lm's classes have Hugging Face's names, or have them below ``language_model``."""
    path = name.removeprefix(_PREFIX)
    if path == name:
        return ""
    return next((p for p in (path, f"language_model.{path}") if p in targets), "")
