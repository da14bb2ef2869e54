"""A module's parameters, counted and measured."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten


def named_parameters(module: Module) -> Iterator[tuple[str, mx.array]]:
    for name, value in tree_flatten(module.parameters()):
        assert isinstance(name, str) and isinstance(value, mx.array)
        yield name, value


def n_bytes(module: Module) -> int:
    return sum(value.nbytes for _, value in named_parameters(module))


def n_parameters(module: Module) -> int:
    """The number of weights, where a quantised matrix counts as what it stands for."""
    total = 0
    for part in module.modules():
        bits = getattr(part, "bits", None) if "scales" in part else None
        for name, value in part.items():
            if isinstance(value, mx.array) and not name.startswith("_"):
                total += _stands_for(name, value, bits)
    return total


def _stands_for(name: str, value: mx.array, bits: int | None) -> int:
    if bits is None or name not in ("weight", "scales", "biases"):
        return int(value.size)
    return int(value.size) * 32 // bits if name == "weight" else 0
