"""The names under which a span and the caches that cannot be cut lie in a state file.

Of a span ``3.keys.0`` is the first part of the keys of the fourth plain layer, and ``3-7.keys.0`` that of
five layers one after the other in one array, which is quicker to read where a file is small.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.state_file import Tensor, tensor_of

SIDES = ("keys", "values")


def span_tensors(span: KVSpan) -> dict[str, Tensor]:
    """One tensor for each part of each layer, (1, heads, tokens, width)."""
    return {
        f"{i}.{side}.{j}": tensor_of(part)
        for i, layer in enumerate(span.layers)
        for side, parts in zip(SIDES, layer, strict=True)
        for j, part in enumerate(parts)
    }


def span_of(arrays: Mapping[str, mx.array]) -> KVSpan:
    """The span of arrays that are named as ``span_tensors`` names them."""
    n_layers = sum(name.endswith(".keys.0") for name in arrays)
    layers = ((_parts(arrays, f"{i}.keys"), _parts(arrays, f"{i}.values")) for i in range(n_layers))
    return KVSpan(tuple(layers))


def stacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A span's tensors, neighbouring layers of one shape and type in one: (layers, heads, tokens, width)."""
    found: dict[str, Tensor] = {}
    for side in SIDES:
        for j in itertools.count():
            layers = [(i, tensors[name]) for i, name in _layers(tensors, side, j)]
            if not layers:
                break
            for first, last, run in _runs(layers):
                values = np.concatenate([tensor.values for tensor in run])
                found[f"{first}-{last}.{side}.{j}"] = Tensor(run[0].kind, values)
    return found


def unstacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What ``stacked`` was given, without a copy. Raises ValueError for names that it does not make."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layers, side, part = name.split(".")
        first, last = map(int, layers.split("-"))
        if last - first + 1 != len(tensor.values) or side not in SIDES:
            raise ValueError(name)
        for i in range(first, last + 1):
            at = i - first
            found[f"{i}.{side}.{part}"] = Tensor(tensor.kind, tensor.values[at : at + 1])
    return found


def snapshot_states(snapshot: KVSnapshot, tensors: dict[str, Tensor]) -> list[Any]:
    """The ``cache.state`` of each layer as JSON that names its arrays, which go to ``tensors``."""
    return [_plain(cache.state, f"state.{i}", tensors) for i, cache in enumerate(snapshot.caches)]


def states_of(states: Sequence[Any], arrays: Mapping[str, mx.array]) -> tuple[Any, ...]:
    """What ``snapshot_states`` was given. Raises KeyError, TypeError for JSON that it does not make."""
    return tuple(_restored(state, arrays) for state in states)


def _layers(tensors: Mapping[str, Tensor], side: str, part: int) -> Iterator[tuple[int, str]]:
    """The layers that have this part, in order, and its names; all have the first."""
    for i in itertools.count():
        if f"{i}.{side}.0" not in tensors:
            return
        if (name := f"{i}.{side}.{part}") in tensors:
            yield i, name


def _runs(layers: Sequence[tuple[int, Tensor]]) -> Iterator[tuple[int, int, list[Tensor]]]:
    """Neighbours that are alike: (first layer, last layer, tensors)."""
    start = 0
    for end in range(1, len(layers) + 1):
        if end < len(layers) and _alike(layers[end - 1], layers[end]):
            continue
        yield layers[start][0], layers[end - 1][0], [tensor for _, tensor in layers[start:end]]
        start = end


def _alike(a: tuple[int, Tensor], b: tuple[int, Tensor]) -> bool:
    (i, one), (j, other) = a, b
    return (i + 1, one.kind, one.values.shape) == (j, other.kind, other.values.shape)


def _parts(arrays: Mapping[str, mx.array], name: str) -> tuple[mx.array, ...]:
    """The arrays ``name.0``, ``name.1``, ... as far as there are some."""
    names = itertools.takewhile(arrays.__contains__, (f"{name}.{j}" for j in itertools.count()))
    return tuple(arrays[each] for each in names)


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, mx.array):
        mx.eval(value)  # some caches give a slice of what they hold
        tensors[name] = tensor_of(value)
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return {"list": [_plain(part, f"{name}.{i}", tensors) for i, part in enumerate(value)]}
    return {"value": value}


def _restored(state: Mapping[str, Any], arrays: Mapping[str, mx.array]) -> Any:
    if "array" in state:
        return arrays[state["array"]]
    return [_restored(part, arrays) for part in state["list"]] if "list" in state else state["value"]
