from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.reader import parse_part, read_part


def test_values_shapes_and_data(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_custom_alignment(64)
    writer.add_uint8("u8", 200)
    writer.add_int64("i64", -5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "zwölf")
    writer.add_array("texts", ["a", "", "ß"])
    writer.add_array("numbers", [1, 2, 3])
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    writer.add_tensor("cube", values)
    writer.add_tensor("q", gguf.quants.quantize(np.ones((2, 64), np.float32), Type.Q8_0), raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part = read_part(tmp_path / "a.gguf")
    expected = {"u8": 200, "i64": -5, "f64": 0.1, "yes": True, "text": "zwölf"}
    assert {key: part.metadata[key] for key in expected} == expected
    assert part.metadata["texts"] == ["a", "", "ß"]
    assert part.metadata["numbers"] == [1, 2, 3]
    cube, packed = part.tensors["cube"], part.tensors["q"]
    assert (cube.shape, cube.type, cube.n_elements) == ((2, 3, 4), Type.F32, 24)
    assert np.array_equal(cube.data.view(np.float32).reshape(2, 3, 4), values)
    assert (packed.shape, packed.data.shape) == ((2, 64), (2, 68))


def header(version: int = 3, n_tensors: int = 0, n_entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)


def key(name: str, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


BROKEN = {
    "no GGUF file": (b"PK\x03\x04rest", "not a GGUF file"),
    "empty": (b"", "not a GGUF file"),
    "only the magic": (b"GGUF", "a value needs 4 bytes, 0 are left"),
    "old version": (header(version=1), "version 1 is unknown"),
    "other byte order": (header(version=0x03000000), "version 50331648 is unknown"),
    "too many entries": (header(n_entries=2**63), "needs 8 bytes"),
    "too many tensors": (header(n_tensors=2**60), "tensors do not fit"),
    "endless key": (header(n_entries=1) + struct.pack("<Q", 2**62), "a string needs"),
    "unknown type": (header(n_entries=1) + key("k", 99), "'k' has the unknown type 99"),
    "endless array": (
        header(n_entries=1) + key("k", 9) + struct.pack("<IQ", 8, 2**61),
        "the array 'k' needs",
    ),
    "endless numbers": (
        header(n_entries=1) + key("k", 9) + struct.pack("<IQ", 12, 2**61),
        "the array 'k' needs",
    ),
    "array of arrays": (header(n_entries=1) + key("k", 9) + struct.pack("<IQ", 9, 1), "unknown type 9"),
    "short array": (
        header(n_entries=1) + key("k", 9) + struct.pack("<IQQQ", 8, 2, 0, 5),
        "ends after 1 of 2 strings",
    ),
    "twice the same key": (header(n_entries=2) + 2 * (key("k", 0) + b"\1"), "'k' appears twice"),
    "alignment": (
        header(n_entries=1) + key("general.alignment", 4) + struct.pack("<I", 24),
        "no power of two",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_headers(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_part(tmp_path / "a.gguf")


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return (
        struct.pack("<Q", len(name))
        + name.encode()
        + struct.pack("<I", len(shape))
        + sizes
        + struct.pack("<IQ", kind, offset)
    )


BROKEN_TENSORS = {
    "five dimensions": (tensor(shape=(1, 1, 1, 1, 1)), "has 5 dimensions"),
    "no dimension": (tensor(shape=()), "has 0 dimensions"),
    "empty": (tensor(shape=(0, 4)), "is empty"),
    "unknown type": (tensor(kind=77), "unknown type 77"),
    "uneven row": (tensor(shape=(33,), kind=8), "no multiple of 32"),
    "beyond the end": (tensor(shape=(2**40, 2**40)), "bytes after the file"),
    "offset beyond the end": (tensor(offset=2**62), "bytes after the file"),
    "unaligned": (tensor(offset=8), "no multiple of 32"),
}


@pytest.mark.parametrize("name", BROKEN_TENSORS)
def test_broken_tensors(name: str, tmp_path: Path) -> None:
    info, message = BROKEN_TENSORS[name]
    (tmp_path / "a.gguf").write_bytes(header(n_tensors=1) + info + bytes(256))
    with pytest.raises(ModelError, match=message):
        read_part(tmp_path / "a.gguf")


def test_twice_the_same_tensor(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(header(n_tensors=2) + 2 * tensor() + bytes(256))
    with pytest.raises(ModelError, match="'t' appears twice"):
        read_part(tmp_path / "a.gguf")


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_part(tmp_path / "a.gguf")
    with pytest.raises(ModelError, match="Is a directory"):
        read_part(tmp_path)


def test_a_message_is_short_whatever_a_file_calls_its_keys() -> None:
    key = b"k\n" * 5000
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + struct.pack("<I", 99)
    with pytest.raises(ModelError) as found:
        parse_part(head, Path("a.gguf"))
    assert len(str(found.value)) < 300 and "\n" not in str(found.value)
