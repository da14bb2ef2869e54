"""Arrays in a safetensors file, with a JSON header and a checksum over both.

Slot files and the disk tier's blocks are such files. Writing takes the numbers from where they lie and
reading gives numpy arrays, so that a thread that does either needs no stream of MLX's.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

MAX_TABLE = 100_000_000
"""Bytes of a safetensors file's table at most, as the format has it."""

ALIGNMENT = 8

CHECKSUM = "sha256"
OLD_CHECKSUM = "checksum"
"""Of earlier slot files: BLAKE2b, which is half as fast on a Mac."""

_DTYPES: dict[str, tuple[mx.Dtype, str]] = {
    "BOOL": (mx.bool_, "?"),
    "U8": (mx.uint8, "u1"),
    "I8": (mx.int8, "i1"),
    "U16": (mx.uint16, "<u2"),
    "I16": (mx.int16, "<i2"),
    "F16": (mx.float16, "<f2"),
    "BF16": (mx.bfloat16, "<u2"),
    "U32": (mx.uint32, "<u4"),
    "I32": (mx.int32, "<i4"),
    "F32": (mx.float32, "<f4"),
    "U64": (mx.uint64, "<u8"),
    "I64": (mx.int64, "<i8"),
}
"""By safetensors' names; numpy has no bfloat16 and takes its bits as integers."""

_NAMES = {dtype: name for name, (dtype, _) in _DTYPES.items()}


class Digest(Protocol):
    """A hash of the standard library's."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class StateFileError(Exception):
    """One line that says why a file cannot be used."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """``values`` are numbers of safetensors' type ``kind``."""

    kind: str
    values: np.ndarray[Any, np.dtype[Any]]

    def columns(self, start: int, end: int) -> Tensor:
        """Of (1, heads, tokens, width) some of the tokens."""
        return Tensor(self.kind, self.values[:, :, start:end])


def tensor_of(array: mx.array) -> Tensor:
    """The numbers of an evaluated array, where they lie; a copy where they do not lie in order."""
    kind = _NAMES[array.dtype]
    dtype = _DTYPES[kind][1]
    if array.size == 0:
        return Tensor(kind, np.empty(array.shape, dtype))
    view = memoryview(array)  # type: ignore[arg-type]
    if not view.c_contiguous:
        array = mx.contiguous(array, stream=mx.cpu)
        mx.eval(array)
        view = memoryview(array)  # type: ignore[arg-type]
    return Tensor(kind, np.frombuffer(view.cast("B"), dtype).reshape(array.shape))


def arrays_of(tensors: dict[str, Tensor]) -> dict[str, mx.array]:
    """Evaluated copies for MLX; ``tensors`` is emptied. bfloat16 takes a stream of the calling thread's."""
    arrays: dict[str, mx.array] = {}
    while tensors:
        name, tensor = tensors.popitem()
        array = mx.array(tensor.values)
        arrays[name] = array.view(mx.bfloat16) if tensor.kind == "BF16" else array
    mx.eval(arrays)
    return arrays


def packed(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The file's bytes in pieces. The header comes first in the table, to be read without the rest."""
    tensors = {name: _in_order(tensor) for name, tensor in tensors.items()}
    text = json.dumps(header)
    table: dict[str, Any] = {
        "__metadata__": {"header": text, CHECKSUM: _checksum(text, tensors, hashlib.sha256())}
    }
    pieces: list[bytes | memoryview] = []
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].values.itemsize, name)):
        tensor = tensors[name]
        start, end = end, end + tensor.values.nbytes
        table[name] = {
            "dtype": tensor.kind,
            "shape": list(tensor.values.shape),
            "data_offsets": [start, end],
        }
        if tensor.values.nbytes:
            pieces.append(tensor.values.data.cast("B"))
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    return [struct.pack("<Q", len(head)) + head, *pieces]


def read_state(file: FileIO) -> tuple[Any, dict[str, Tensor]]:
    """The header and the tensors of a whole file whose checksum is right.

    Raises StateFileError for any other file, OSError where it cannot be read.
    """
    file_size = file.seek(0, 2)
    table = _table(file, file_size)
    base = file.tell()
    text, wanted, digest = _metadata(table.pop("__metadata__", None))
    table.pop("empty", None)  # earlier slot files without arrays have it
    tensors: dict[str, Tensor] = {}
    for name in sorted(table):
        kind, shape, start, end = _place(table[name], file_size - base)
        values = np.empty(end - start, "u1")
        file.seek(base + start)
        _fill(file, values.data)
        tensors[name] = Tensor(kind, values.view(_DTYPES[kind][1]).reshape(shape))
    try:
        found = _checksum(text, tensors, digest)
    except UnicodeEncodeError as error:  # half of a surrogate pair in the header or in a name
        raise StateFileError("the file is damaged (its header)") from error
    if found != wanted:
        raise StateFileError("the file is damaged (its checksum differs)")
    return _json(text), tensors


def read_header(file: FileIO) -> tuple[Any, int]:
    """The header of a file that ``packed`` made, and the bytes behind its table; cheap, nothing is verified.

    Raises as ``read_state``.
    """
    file_size = file.seek(0, 2)
    file.seek(0)
    first = file.read(4096)
    size = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else 0
    if not 0 < size <= min(file_size - 8, MAX_TABLE):
        raise StateFileError("the file is damaged or none of ours (its length)")
    begin = b'{"__metadata__":'
    if not first[8:].startswith(begin):
        raise StateFileError("the file is none of ours")
    text = first[8 : 8 + size]
    while len(text) < size:
        more = file.read(size - len(text))
        if not more:
            raise StateFileError("the file is damaged (it ends early)")
        text += more
    try:
        metadata, _ = json.JSONDecoder().raw_decode(text.decode(), len(begin))
    except (ValueError, RecursionError) as error:
        raise StateFileError("the file is damaged (its table)") from error
    return _json(_metadata(metadata)[0]), file_size - 8 - size


def raw_bytes(array: mx.array) -> memoryview:
    flat: Any = mx.contiguous(array).reshape(-1).view(mx.uint8)
    return memoryview(flat)


def _checksum(header: str, tensors: Mapping[str, Tensor], digest: Digest) -> str:
    """Over the header's text and the names, shapes, types and numbers of the tensors, which are in order."""
    digest.update(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.values.shape}{_DTYPES[tensor.kind][0]}".encode())
        if tensor.values.nbytes:
            digest.update(tensor.values.data.cast("B"))
    return digest.hexdigest()


def _in_order(tensor: Tensor) -> Tensor:
    values = tensor.values
    return tensor if values.flags.c_contiguous else Tensor(tensor.kind, np.ascontiguousarray(values))


def _table(file: FileIO, file_size: int) -> dict[str, Any]:
    """The file stands behind it then."""
    file.seek(0)
    if file_size < 8:
        raise StateFileError("the file is damaged (it ends early)")
    raw = bytearray(8)
    _fill(file, memoryview(raw))
    size = struct.unpack("<Q", raw)[0]
    if not 0 < size <= min(file_size - 8, MAX_TABLE):
        raise StateFileError("the file is damaged or none of ours (its length)")
    raw = bytearray(size)
    _fill(file, memoryview(raw))
    table = _json(raw)
    if not isinstance(table, dict):
        raise StateFileError("the file is damaged (its table)")
    return table


def _metadata(metadata: Any) -> tuple[str, str, Digest]:
    """The header's text, the checksum and what it is made with."""
    if isinstance(metadata, dict) and isinstance(text := metadata.get("header"), str):
        if isinstance(wanted := metadata.get(CHECKSUM), str):
            return text, wanted, hashlib.sha256()
        if isinstance(wanted := metadata.get(OLD_CHECKSUM), str):
            return text, wanted, hashlib.blake2b(digest_size=16)
    raise StateFileError("the file is none of ours (it has no header)")


def _place(entry: Any, data_size: int) -> tuple[str, tuple[int, ...], int, int]:
    """(type, shape, first byte, end) of a tensor. Raises StateFileError where they do not agree."""
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, start, end))
        n_bytes = math.prod(shape) * np.dtype(_DTYPES[kind][1]).itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise StateFileError("the file is damaged (its table)") from error
    if not (sound and end <= data_size and end - start == n_bytes):
        raise StateFileError("the file is damaged (it ends early)")
    return kind, shape, start, end


def _json(text: str | bytearray) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateFileError("the file is damaged (its header)") from error


def _fill(file: FileIO, buffer: memoryview) -> None:
    n = 0
    while n < len(buffer):
        got = file.readinto(buffer[n:])
        if not got:
            raise StateFileError("the file is damaged (it ends early)")
        n += got
