"""The header of a GGUF file, read through a memory map.

``gguf.GGUFReader`` makes several arrays an entry and takes half a minute for a vocabulary of 262k tokens.
Every count and length is checked against the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from mlxserver.models.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True, slots=True)
class Tensor:
    """``shape`` is in row-major order: GGUF's dimensions reversed."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    data: np.ndarray[Any, np.dtype[np.uint8]]
    """A view into the file of shape (rows, bytes of a row)."""

    @property
    def n_elements(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True, slots=True)
class GGUFPart:
    """One file: its metadata in file order, and its tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def read_part(path: Path) -> GGUFPart:
    """Reads one GGUF file.

    Raises ModelError for a file that is missing, foreign, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ModelError(f"{path}: not a GGUF file (it does not start with the letters GGUF)")
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    return parse_part(content, path)


def parse_part(content: bytes | mmap.mmap, path: Path) -> GGUFPart:
    """As ``read_part``, of a file's whole content; ``path`` is for messages."""
    if content[: len(MAGIC)] != MAGIC:
        raise ModelError(f"{path}: not a GGUF file (it does not start with the letters GGUF)")
    try:
        return _Reader(content).read()
    except _Damaged as error:
        raise ModelError(f"{path}: damaged or incomplete GGUF file: {error}") from error


class _Damaged(Exception):
    pass


class _Reader:
    def __init__(self, content: bytes | mmap.mmap) -> None:
        self._content = content
        self._size = len(content)
        self._at = len(MAGIC)

    def read(self) -> GGUFPart:
        version = self._scalar(_U32)
        if version not in VERSIONS:
            raise _Damaged(f"version {version} is unknown (known: 2, 3)")
        n_tensors, n_entries = self._scalar(_U64), self._scalar(_U64)
        metadata = self._metadata(n_entries)
        return GGUFPart(metadata, self._tensors(n_tensors, _alignment(metadata)))

    def _need(self, n_bytes: int, what: str) -> None:
        left = self._size - self._at
        if n_bytes > left:
            raise _Damaged(f"{what} needs {n_bytes} bytes, {left} are left")

    def _scalar(self, kind: struct.Struct) -> Any:
        self._need(kind.size, "a value")
        (value,) = kind.unpack_from(self._content, self._at)
        self._at += kind.size
        return value

    def _string(self) -> str:
        n_bytes = self._scalar(_U64)
        self._need(n_bytes, "a string")
        text = self._content[self._at : self._at + n_bytes].decode("utf-8", "replace")
        self._at += n_bytes
        return text

    def _metadata(self, n_entries: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_entries):
            key = self._string()
            if key in metadata:
                raise _Damaged(f"the key {_shown(key)} appears twice")
            metadata[key] = self._value(self._scalar(_U32), key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise _Damaged(f"the key {_shown(key)} has the unknown type {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self, key: str) -> list[Any]:
        kind, count = self._scalar(_U32), self._scalar(_U64)
        if kind == _STRING:
            return self._strings(count, key)
        if kind not in _SCALARS:
            raise _Damaged(f"the array {_shown(key)} has the unknown type {kind}")
        item = _SCALARS[kind]
        self._need(count * item.size, f"the array {_shown(key)}")
        values: list[Any] = np.frombuffer(self._content, np.dtype(item.format), count, self._at).tolist()
        self._at += count * item.size
        return values

    def _strings(self, count: int, key: str) -> list[str]:
        self._need(count * _U64.size, f"the array {_shown(key)}")
        content, at, size, length = self._content, self._at, self._size, _U64.unpack_from
        texts: list[str] = []
        for _ in range(count):
            if at + 8 > size or (end := at + 8 + length(content, at)[0]) > size:
                raise _Damaged(f"the array {_shown(key)} ends after {len(texts)} of {count} strings")
            texts.append(content[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self._at = at
        return texts

    def _tensors(self, n_tensors: int, alignment: int) -> dict[str, Tensor]:
        headers = [self._tensor_header() for _ in _bounded(n_tensors, self._size - self._at)]
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in headers:
            if name in tensors:
                raise _Damaged(f"the tensor {_shown(name)} appears twice")
            if offset % alignment:
                raise _Damaged(f"the tensor {_shown(name)} starts at {offset}, no multiple of {alignment}")
            tensors[name] = Tensor(name, shape, kind, self._rows(name, shape, kind, start + offset))
        return tensors

    def _tensor_header(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name, n_dims = self._string(), self._scalar(_U32)
        if not 1 <= n_dims <= MAX_DIMS:
            raise _Damaged(f"the tensor {_shown(name)} has {n_dims} dimensions")
        shape = tuple(reversed([self._scalar(_U64) for _ in range(n_dims)]))
        if not all(shape):
            raise _Damaged(f"the tensor {_shown(name)} is empty")
        code, offset = self._scalar(_U32), self._scalar(_U64)
        try:
            return name, shape, GGMLQuantizationType(code), offset
        except ValueError as error:
            raise _Damaged(f"the tensor {_shown(name)} has the unknown type {code}") from error

    def _rows(
        self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType, at: int
    ) -> np.ndarray[Any, np.dtype[np.uint8]]:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise _Damaged(f"the rows of {_shown(name)} are no multiple of {block} values long")
        row_bytes = shape[-1] // block * block_bytes
        n_rows = 1
        for size in shape[:-1]:
            n_rows *= size
        missing = at + n_rows * row_bytes - self._size
        if missing > 0:
            raise _Damaged(f"the tensor {_shown(name)} ends {missing} bytes after the file")
        return np.frombuffer(self._content, np.uint8, n_rows * row_bytes, at).reshape(n_rows, row_bytes)


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damaged(f"the alignment {alignment!r} is no power of two")
    return alignment


def _bounded(count: int, bytes_left: int) -> range:
    """``range(count)`` where a tensor header takes at least 32 bytes."""
    if count * 32 > bytes_left:
        raise _Damaged(f"{count} tensors do not fit into the {bytes_left} bytes that are left")
    return range(count)


def _shown(name: str) -> str:
    """A name out of the file, which may be anything."""
    return repr(name[:80])
