"""Slot files that earlier versions wrote (MLX's own safetensors writer) are read as they were."""

from __future__ import annotations

import fcntl
from pathlib import Path

import mlx.core as mx
import pytest

from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_file import (
    TEMPORARY,
    SlotFile,
    SlotFileError,
    read_slot_file,
    remove_leftovers,
    write_slot_file,
)
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.state_file import packed

DATA = Path(__file__).parent / "data"
IDENTITY = CacheIdentity(adapters=(("ab", 0.5),), tenant="t")


def read(name: str) -> SlotFile:
    found = read_slot_file(DATA / f"slot-2-{name}.safetensors", "a model")
    assert (found.tokens, found.identity, found.exact_until) == ((5, 6, 7), IDENTITY, 2)
    return found


@pytest.mark.parametrize("name", ["plain", "window"])
def test_spans(name: str) -> None:
    (((keys,), (values,)),) = read(name).span.layers
    assert keys.dtype == mx.bfloat16 and mx.array_equal(keys, mx.arange(24).reshape(1, 2, 3, 4))
    assert values.dtype == mx.float16 and mx.array_equal(values, mx.arange(12).reshape(1, 1, 3, 4))


def test_states() -> None:
    window, arrays = read("window").states
    keys, values, *numbers = window
    assert mx.array_equal(keys, mx.ones((1, 1, 2, 4))) and mx.array_equal(values, mx.zeros((1, 1, 2, 4)))
    assert numbers == [2, 0, 4, 2]
    (first, second), *rest = arrays
    assert mx.array_equal(first, mx.arange(6).reshape(1, 2, 3)) and (second, rest) == (None, [None, None])


def test_no_arrays_at_all(tmp_path: Path) -> None:
    assert read("empty").span.layers == ()
    write_slot_file(tmp_path / "now", "a model", (5,), IDENTITY, KVSpan(()), None)
    assert read_slot_file(tmp_path / "now", "a model") == SlotFile((5,), IDENTITY, KVSpan(()))


def test_what_is_written_now_is_safetensors_to_mlx_too(tmp_path: Path) -> None:
    span = read("plain").span
    write_slot_file(tmp_path / "now", "a model", (5, 6, 7), IDENTITY, span, None)
    arrays = mx.load(str(tmp_path / "now"), format="safetensors")
    assert isinstance(arrays, dict) and arrays.keys() == {"0.keys.0", "0.values.0"}
    assert arrays["0.keys.0"].dtype == mx.bfloat16
    assert mx.array_equal(arrays["0.keys.0"], span.layers[0][0][0])


@pytest.mark.parametrize("header", [{"format": {}}, {"format": []}, {"format": None}, [], "text", None, 5])
def test_headers_that_are_none(tmp_path: Path, header: object) -> None:
    made: object = header
    if isinstance(header, dict):
        made = header | {"model": "a model"}
    (tmp_path / "odd").write_bytes(b"".join(bytes(piece) for piece in packed(made, {})))  # type: ignore[arg-type]
    with pytest.raises(SlotFileError, match="belongs to another model"):
        read_slot_file(tmp_path / "odd", "a model")


def test_what_a_killed_server_was_writing_is_removed(tmp_path: Path) -> None:
    """Not what another one is writing now, and no file that a request named."""
    left, locked, kept = (tmp_path / name for name in (f"{TEMPORARY}a", f"{TEMPORARY}b", ".slot-c"))
    for path in (left, locked, kept):
        path.write_bytes(b"half")
    with locked.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([locked, kept])
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    remove_leftovers(tmp_path / "gone")
