"""A span's layers in one array each and in common ones."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.kv.kv_type import KV_TYPES, KVType
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.state_file import Tensor, arrays_of
from mlxserver.kv.state_names import span_of, span_tensors, stacked, unstacked

F16, Q8 = KV_TYPES["f16"], KV_TYPES["q8_0"]


def parts(kind: KVType, heads: int, width: int) -> tuple[mx.array, ...]:
    return kind.encode(mx.random.normal((1, heads, 5, width)))


def span(*layers: tuple[KVType, int, int, int]) -> KVSpan:
    """Of (type, heads, width of keys, width of values)."""
    made = tuple((parts(kind, heads, k), parts(kind, heads, v)) for kind, heads, k, v in layers)
    mx.eval(made)
    return KVSpan(made)


SPANS = {
    "alike": (span(*[(F16, 2, 32, 32)] * 4), {"0-3.keys.0", "0-3.values.0"}),
    "quantised": (
        span(*[(Q8, 2, 64, 64)] * 2),
        {f"0-1.{s}.{j}" for s in ("keys", "values") for j in range(3)},
    ),
    "other widths": (span(*[(F16, 1, 64, 32)] * 3), {"0-2.keys.0", "0-2.values.0"}),
    "one larger": (
        span((F16, 2, 32, 32), (F16, 4, 32, 32), (F16, 2, 32, 32)),
        {f"{i}-{i}.{s}.0" for i in range(3) for s in ("keys", "values")},
    ),
    "keys differ": (
        span((F16, 2, 32, 32), (F16, 2, 64, 32)),
        {"0-0.keys.0", "1-1.keys.0", "0-1.values.0"},
    ),
    "types differ": (
        span((F16, 2, 32, 32), (Q8, 2, 32, 32), (Q8, 2, 32, 32)),
        {"0-0.keys.0", "0-0.values.0"} | {f"1-2.{s}.{j}" for s in ("keys", "values") for j in range(3)},
    ),
    "none": (KVSpan(()), set[str]()),
}


@pytest.mark.parametrize("name", SPANS)
def test_there_and_back(name: str) -> None:
    whole, names = SPANS[name]
    common = stacked(span_tensors(whole))
    assert common.keys() == names
    again = span_of(arrays_of(unstacked(common)))
    assert len(again.layers) == len(whole.layers)
    for layer, other in zip(whole.layers, again.layers, strict=True):
        for some, others in zip(layer, other, strict=True):
            for a, b in zip(some, others, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype) and mx.array_equal(a, b)


@pytest.mark.parametrize(
    "name", ["0.keys.0", "0-1.keys.0", "1-0.keys.0", "0-0.other.0", "0-0.keys", "a-b.keys.0"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        unstacked({name: Tensor("F32", np.zeros((1, 1, 5, 4), "<f4"))})
