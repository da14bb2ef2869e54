"""What each KV type holds: the error of a round trip, the bytes, and that tokens are held one by one."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from mlxserver.kv.kv_type import GROUP, KV_TYPES

QUANTISED = {"q8_0": 8, "q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5}


def numbers(n: int = 1000, head_dim: int = 64) -> mx.array:
    return mx.random.normal((1, 3, n, head_dim), key=mx.random.key(1))


def groups(array: mx.array) -> mx.array:
    return array.reshape(-1, GROUP)


@pytest.mark.parametrize(("name", "bits"), QUANTISED.items())
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_errors_are_those_of_the_bits(name: str, bits: int, dtype: mx.Dtype) -> None:
    kind, array = KV_TYPES[name], numbers().astype(dtype)
    found = kind.decode(kind.encode(array), dtype)
    assert found.dtype == dtype
    exact = groups(array.astype(mx.float32))
    error = mx.abs(groups(found.astype(mx.float32)) - exact)
    step = (exact.max(axis=-1) - exact.min(axis=-1)) / (2**bits - 1)
    # bfloat16 itself rounds by up to 2**-9 of a number; the far end of a range may be a step away
    slack = 2**-9 * mx.abs(exact).max().item() if dtype == mx.bfloat16 else 0
    assert ((error - slack).max(axis=-1) / step).max().item() < 1.15
    rms, ideal = mx.sqrt((error**2).mean()).item(), mx.sqrt((step**2).mean()).item() / math.sqrt(12)
    assert ideal < rms < 1.2 * ideal


@pytest.mark.parametrize(("name", "bits"), QUANTISED.items())
def test_bytes(name: str, bits: int) -> None:
    """Each number takes its bits, and a share of a scale and a bias of two bytes each."""
    parts = KV_TYPES[name].encode(numbers(10))
    assert sum(part.nbytes for part in parts) * 8 == 10 * 3 * 64 * (bits + 32 / GROUP)
    assert [part.shape[:3] for part in parts] == [(1, 3, 10)] * 3
    assert KV_TYPES[name].holds(parts)


@pytest.mark.parametrize("name", KV_TYPES)
def test_what_a_token_reads_back_does_not_depend_on_others(name: str) -> None:
    kind, array = KV_TYPES[name], numbers(40)
    whole = kind.decode(kind.encode(array), mx.float32)
    for columns in (slice(0, 1), slice(7, 19), slice(39, 40)):
        assert mx.array_equal(
            kind.decode(kind.encode(array[:, :, columns]), mx.float32), whole[:, :, columns]
        )
        parts = [part[:, :, columns] for part in kind.encode(array)]
        assert mx.array_equal(kind.decode(parts, mx.float32), whole[:, :, columns])


@pytest.mark.parametrize(("name", "dtype"), [("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16)])
def test_floats_are_only_cast(name: str, dtype: mx.Dtype) -> None:
    (part,) = KV_TYPES[name].encode(numbers())
    assert part.dtype == dtype
    assert mx.array_equal(
        KV_TYPES[name].decode([part], mx.float32), numbers().astype(dtype).astype(mx.float32)
    )


@pytest.mark.parametrize("name", KV_TYPES)
def test_what_is_no_finite_number_is_held_as_0_where_that_is_asked(name: str) -> None:
    kind, array = KV_TYPES[name], mx.full((1, 1, 4, GROUP), 3.25)
    odd = mx.array([mx.nan, mx.inf, -mx.inf, 3e38])[None, None, :, None] * mx.ones((1, 1, 4, GROUP))
    found = kind.decode(kind.encode(mx.concatenate([array, odd], axis=2), finite=True), mx.float32)
    assert mx.isfinite(found).all() and mx.array_equal(found[:, :, :4], array)
    assert not found[:, :, 4:7].any()


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("value", [0.0, 3.25, -60000.0])
def test_equal_numbers_are_kept(name: str, value: float) -> None:
    array = mx.full((1, 1, 1, GROUP), value)
    assert mx.array_equal(KV_TYPES[name].decode(KV_TYPES[name].encode(array), mx.float32), array)


def test_parts_of_another_type_are_none_of_its_own() -> None:
    encoded = {name: kind.encode(numbers(3)) for name, kind in KV_TYPES.items()}
    alike = [{"q4_0", "q4_1"}, {"q5_0", "q5_1"}]
    for name, kind in KV_TYPES.items():
        for other, parts in encoded.items():
            assert kind.holds(parts) == (name == other or {name, other} in alike)
    assert not KV_TYPES["q8_0"].holds(encoded["q8_0"][:2])


def test_widths() -> None:
    assert [head_dim for head_dim in (8, 32, 48, 64, 80, 128) if KV_TYPES["q5_1"].fits(head_dim)] == [
        32,
        64,
        128,
    ]
    assert KV_TYPES["f16"].fits(80)
