"""Pairs of matrices as a file holds them, and how they become parts of an adapter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx

from mlxserver.models.lora.adapter import AdapterError, LowRank
from mlxserver.models.lora.targets import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Factor:
    """One matrix of a file (or one for each expert): its shape is known before its values are read."""

    shape: tuple[int, ...]
    read: Callable[[], mx.array]

    @property
    def transposed(self) -> Factor:
        """With the last two axes exchanged."""
        *leading, rows, columns = self.shape
        return Factor((*leading, columns, rows), lambda: self.read().swapaxes(-1, -2))


@dataclass(frozen=True, slots=True)
class Pair:
    """``a`` (in, rank) and ``b`` (rank, out), for experts with a leading axis, as LowRank wants them."""

    name: str
    """The file's own name for it, for messages."""
    path: str
    """Of the layer; empty where the model has no such layer."""
    a: Factor
    b: Factor
    scale: float
    in_head: bool = False


def paired(tensors: Mapping[str, T], endings: Mapping[str, str]) -> dict[str, tuple[T, T]]:
    """Name without its ending -> ``a`` and ``b``; ``endings`` says which of them is which.

    Raises AdapterError for a name with another ending, and for half a pair.
    """
    halves: dict[str, dict[str, T]] = {}
    for name, tensor in tensors.items():
        ending = next((ending for ending in endings if name.endswith(ending)), None)
        if ending is None:
            raise AdapterError(f"LoRA tensor '{name[:200]}' has unexpected suffix")
        half = halves.setdefault(name.removesuffix(ending), {})
        if endings[ending] in half:
            raise AdapterError(f"LoRA tensor '{name[:200]}' is there under another name too")
        half[endings[ending]] = tensor
    for name, half in halves.items():
        if len(half) < 2:
            raise AdapterError(f"LoRA tensor pair for '{name[:200]}' is missing one component")
    return {name: (half["a"], half["b"]) for name, half in halves.items()}


def no_layer(name: str) -> AdapterError:
    return AdapterError(
        f"LoRA tensor '{name[:200]}' does not exist in base model (hint: maybe wrong base model?)"
    )


def fit(pairs: Iterable[Pair], targets: Mapping[str, Target]) -> dict[str, LowRank]:
    """The pairs in their layers' compute types, evaluated. All shapes are checked before a value is read.

    Raises AdapterError for a pair without a layer, of another shape or with values that are not finite.
    """
    found: dict[str, Pair] = {}
    for pair in pairs:
        target = targets.get(pair.path)
        if target is None:
            raise no_layer(pair.name)
        if pair.path in found:
            raise AdapterError(f"LoRA tensor '{pair.name}' is of the same layer as '{found[pair.path].name}'")
        _check(pair, target)
        found[pair.path] = pair
    if not found:
        raise AdapterError("there are no LoRA tensors")
    return {path: _read(pair, targets[path]) for path, pair in found.items()}


def _check(pair: Pair, target: Target) -> None:
    rank = pair.a.shape[-1] if pair.a.shape else 0
    wanted = target.shapes(rank)
    if (pair.a.shape, pair.b.shape) != wanted:
        raise AdapterError(
            f"tensor '{pair.name}' has incorrect shape (hint: maybe wrong base model?): "
            f"{pair.a.shape} and {pair.b.shape}, {wanted[0]} and {wanted[1]} are wanted"
        )
    if not 0 < rank <= max(target.n_in, target.n_out):
        raise AdapterError(f"tensor '{pair.name}' has rank {rank}, which is more than its layer is wide")
    if not math.isfinite(pair.scale):
        raise AdapterError(f"tensor '{pair.name}' has the scale {pair.scale}")


def _read(pair: Pair, target: Target) -> LowRank:
    a, b = (mx.contiguous(factor.read().astype(target.dtype)) for factor in (pair.a, pair.b))
    finite = mx.isfinite(a).all() & mx.isfinite(b).all()
    mx.eval(a, b, finite)
    if not finite.item():
        raise AdapterError(
            f"tensor '{pair.name}' has values that are not finite in {str(target.dtype).rpartition('.')[2]}"
        )
    return LowRank(a, b, pair.scale, pair.in_head)
