"""A module's parameters, counted and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


def named_parameters(module: Any) -> Iterator[tuple[str, mx.array]]:
    flat: list[tuple[str, mx.array]] = tree_flatten(module.parameters())  # type: ignore[assignment]
    yield from flat


def n_bytes(module: Any) -> int:
    return sum(value.nbytes for _, value in named_parameters(module))


def n_parameters(module: Any) -> int:
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
