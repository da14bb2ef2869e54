"""Folders of mlx-lm: ``adapters.safetensors`` with tensors by module path, and one scale for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxserver.models.lora import settings as read
from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.pairs import Factor, Pair, paired
from mlxserver.models.lora.targets import Target

WEIGHTS = "adapters.safetensors"
_ENDINGS = {".lora_a": "a", ".lora_b": "b"}


def read_pairs(
    settings: Mapping[str, Any], tensors: Mapping[str, Factor], targets: Mapping[str, Target]
) -> list[Pair]:
    """The tensors name their layers; ``keys`` and ``num_layers`` have nothing to add to that.

    Raises AdapterError for DoRA and full fine-tuning, and for a rank that is not the announced one.
    """
    kind = settings.get("fine_tune_type", "lora")
    if kind != "lora":
        raise AdapterError(f"adapter_config.json: fine_tune_type = {str(kind)[:40]!r} is not supported")
    parameters = read.mapping(settings, "lora_parameters")
    scale = read.number(parameters, "scale")
    rank = read.count(parameters, "rank")
    pairs = []
    for path, (a, b) in paired(tensors, _ENDINGS).items():
        target = targets.get(path)
        if target is not None and target.n_experts:  # those are stored as their weights are
            a, b = a.transposed, b.transposed
        if a.shape[-1:] != (rank,):
            raise AdapterError(
                f"tensor '{path}' has the shape {a.shape}, adapter_config.json the rank {rank}"
            )
        pairs.append(Pair(path, path, a, b, scale, in_head=True))
    return pairs
