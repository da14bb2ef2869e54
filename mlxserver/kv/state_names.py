"""The names under which a span and the caches that cannot be cut lie in a state file."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.state_file import Tensor, tensor_of


def span_tensors(span: KVSpan) -> dict[str, Tensor]:
    """``3.keys.0`` is the first part of the keys of the fourth plain layer."""
    return {
        f"{i}.{kind}.{j}": tensor_of(part)
        for i, layer in enumerate(span.layers)
        for kind, parts in zip(("keys", "values"), layer, strict=True)
        for j, part in enumerate(parts)
    }


def span_of(arrays: Mapping[str, mx.array]) -> KVSpan:
    n_layers = sum(name.endswith(".keys.0") for name in arrays)
    layers = ((_parts(arrays, f"{i}.keys"), _parts(arrays, f"{i}.values")) for i in range(n_layers))
    return KVSpan(tuple(layers))


def snapshot_states(snapshot: KVSnapshot, tensors: dict[str, Tensor]) -> list[Any]:
    """The ``cache.state`` of each layer as JSON that names its arrays, which go to ``tensors``."""
    return [_plain(cache.state, f"state.{i}", tensors) for i, cache in enumerate(snapshot.caches)]


def states_of(states: Sequence[Any], arrays: Mapping[str, mx.array]) -> tuple[Any, ...]:
    """What ``snapshot_states`` was given. Raises KeyError, TypeError for JSON that it does not make."""
    return tuple(_restored(state, arrays) for state in states)


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
