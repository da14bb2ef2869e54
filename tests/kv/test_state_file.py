"""Arrays to bytes and back: every type and layout; a damaged file is never taken for a sound one."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxserver.kv.state_file import (
    StateFileError,
    arrays_of,
    packed,
    read_header,
    read_state,
    tensor_of,
)

DTYPES = [
    mx.bool_,
    mx.uint8,
    mx.int8,
    mx.uint16,
    mx.int16,
    mx.uint32,
    mx.int32,
    mx.uint64,
    mx.int64,
    mx.float16,
    mx.bfloat16,
    mx.float32,
]
HEADER = {"format": "a test", "tokens": [1, 2, 3]}


def written(path: Path, arrays: dict[str, mx.array], header: Any = HEADER) -> Path:
    mx.eval(arrays)
    path.write_bytes(b"".join(packed(header, {name: tensor_of(each) for name, each in arrays.items()})))
    return path


def read(path: Path) -> tuple[Any, dict[str, mx.array]]:
    with FileIO(path) as file:
        header, tensors = read_state(file)
    return header, arrays_of(tensors)


def same(a: mx.array, b: mx.array) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(mx.array_equal(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3, 5), (1, 3, 7, 1)], ids=str)
def test_every_type_and_shape(tmp_path: Path, dtype: mx.Dtype, shape: tuple[int, ...]) -> None:
    array = (mx.random.normal(shape) * 100).astype(dtype)
    header, arrays = read(written(tmp_path / "file", {"x": array, "odd": mx.ones((3,), mx.int8)}))
    assert header == HEADER and same(arrays["x"], array)
    loaded = mx.load(str(tmp_path / "file"), format="safetensors")
    assert isinstance(loaded, dict) and same(loaded["x"], array), "MLX reads it too"


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_arrays_that_do_not_lie_in_order(tmp_path: Path, dtype: mx.Dtype) -> None:
    whole = mx.arange(2 * 6 * 4).reshape(2, 6, 4).astype(dtype)
    views = {
        "swapped": whole.swapaxes(0, 1),
        "cut": whole[:, 2:4],
        "every other": whole[:, ::2, 1:],
        "spread": mx.broadcast_to(whole[:1], (3, 6, 4)),
        "backwards": whole[::-1],
    }
    _, arrays = read(written(tmp_path / "file", views))
    assert all(same(arrays[name], view) for name, view in views.items())


def test_some_columns_of_a_tensor(tmp_path: Path) -> None:
    array = mx.random.normal((1, 2, 9, 3)).astype(mx.bfloat16)
    mx.eval(array)
    (tmp_path / "file").write_bytes(b"".join(packed(HEADER, {"x": tensor_of(array).columns(2, 7)})))
    assert same(read(tmp_path / "file")[1]["x"], array[:, :, 2:7])
    with FileIO(tmp_path / "file") as file:
        _, tensors = read_state(file)
    assert same(arrays_of({"x": tensors["x"].columns(1, 4)})["x"], array[:, :, 3:6])


def test_the_numbers_are_not_copied() -> None:
    array = mx.arange(1000).astype(mx.float32)
    mx.eval(array)
    tensor = tensor_of(array)
    (_, piece) = packed(HEADER, {"x": tensor})
    here = np.frombuffer(memoryview(array), np.float32)  # type: ignore[arg-type]
    assert np.shares_memory(tensor.values, here)
    assert np.shares_memory(np.frombuffer(piece, np.float32), here)


def test_the_header_is_read_without_the_arrays(tmp_path: Path) -> None:
    path = written(tmp_path / "file", {"x": mx.zeros((1000,))})
    with FileIO(path) as file:
        assert read_header(file) == (HEADER, 4000)
    long = {"tokens": list(range(5000))}
    with FileIO(written(tmp_path / "long", {"x": mx.zeros((3,))}, long)) as file:
        assert read_header(file) == (long, 12)


SOUND = {"x": mx.arange(6).reshape(1, 2, 3, 1).astype(mx.float16), "y": mx.array([1, 2], mx.uint32)}
"""Small, so that most of the file is its table."""


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_noticed_or_means_nothing(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(written(tmp_path / "file", SOUND).read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "file").write_bytes(raw)
    try:
        header, arrays = read(tmp_path / "file")
    except StateFileError:
        return
    assert header == HEADER and arrays.keys() == SOUND.keys()
    assert all(same(arrays[name], SOUND[name]) for name in SOUND)


@given(cut=st.integers(0, 400), more=st.binary(max_size=40))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_torn_file_is_refused(tmp_path: Path, cut: int, more: bytes) -> None:
    raw = written(tmp_path / "file", SOUND).read_bytes()
    torn = raw[: max(0, len(raw) - 1 - cut)] + more
    (tmp_path / "file").write_bytes(torn)
    if raw == torn[: len(raw)]:
        return
    with pytest.raises(StateFileError):
        read(tmp_path / "file")


@given(raw=st.binary(max_size=200), length=st.integers(0, 220))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_are_too_strange(tmp_path: Path, raw: bytes, length: int) -> None:
    for begin in (b"", b'{"__metadata__":', b'{"__metadata__":{"header":"{}","sha256":"00"},"x":'):
        (tmp_path / "file").write_bytes(length.to_bytes(8, "little") + begin + raw)
        with pytest.raises(StateFileError):
            read(tmp_path / "file")
        with FileIO(tmp_path / "file") as file:
            try:
                read_header(file)
            except StateFileError:
                pass


@pytest.mark.parametrize(
    "table",
    [
        b"[" * 100_000,
        b"[]",
        b'{"__metadata__":7}',
        b'{"__metadata__":{"header":1,"sha256":"a"}}',
        b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    ],
)
def test_tables_that_are_none(tmp_path: Path, table: bytes) -> None:
    (tmp_path / "file").write_bytes(len(table).to_bytes(8, "little") + table + bytes(16))
    with pytest.raises(StateFileError):
        read(tmp_path / "file")
    with FileIO(tmp_path / "file") as file, pytest.raises(StateFileError):
        read_header(file)


@pytest.mark.parametrize(
    "entry",
    [
        '{"dtype":"F99","shape":[1],"data_offsets":[0,4]}',
        '{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}',
        '{"dtype":"F32","shape":[2],"data_offsets":[0,4]}',
        '{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}',
        '{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}',
        '{"dtype":"F32","shape":[true],"data_offsets":[0,4]}',
        '{"dtype":"F32","shape":[1],"data_offsets":[4,8]}',
        '{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}',
        '{"dtype":"F32","shape":[1],"data_offsets":[0]}',
        '{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}',
        "7",
    ],
)
def test_places_of_arrays_that_are_none(tmp_path: Path, entry: str) -> None:
    table = f'{{"__metadata__":{{"header":"{{}}","sha256":"00"}},"x":{entry}}}'.encode()
    (tmp_path / "file").write_bytes(len(table).to_bytes(8, "little") + table + bytes(4))
    with pytest.raises(StateFileError):
        read(tmp_path / "file")


@pytest.mark.parametrize("header, name", [("{}\\ud800", "x"), ("{}", "\\udfff")])
def test_halves_of_surrogate_pairs(tmp_path: Path, header: str, name: str) -> None:
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    table = f'{{"__metadata__":{{"header":"{header}","sha256":"00"}},"{name}":{entry}}}'.encode()
    (tmp_path / "file").write_bytes(len(table).to_bytes(8, "little") + table + bytes(4))
    with pytest.raises(StateFileError, match="its header"):
        read(tmp_path / "file")
