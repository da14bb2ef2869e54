"""A slot's tokens and state in a safetensors file that says what it belongs to.

The header carries the tokens, the identity of the state and a checksum; a file that does not belong here,
or is damaged, is refused before anything is changed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.kv_type import Parts
from mlxserver.kv.spans import KVSnapshot, KVSpan

FORMAT = "mlxserver-slot-2"


class SlotFileError(Exception):
    """One line that says why a file cannot be used."""


@dataclass(frozen=True, slots=True)
class SlotFile:
    """``snapshot`` holds ``cache.state`` of the layers that cannot be cut, by layer."""

    tokens: tuple[int, ...]
    identity: CacheIdentity
    span: KVSpan
    states: tuple[Any, ...] = ()
    exact_until: int | None = None
    """Tokens up to the first whose state came from another position; None where none did."""


def write_slot_file(
    path: Path,
    model: str,
    tokens: tuple[int, ...],
    identity: CacheIdentity,
    span: KVSpan,
    snapshot: KVSnapshot | None,
    exact_until: int | None = None,
) -> int:
    """Write atomically, for the owner only; the bytes written. ``model`` names model and KV types."""
    arrays: dict[str, mx.array] = {}
    for i, layer in enumerate(span.layers):
        for kind, parts in zip(("keys", "values"), layer, strict=True):
            arrays |= {f"{i}.{kind}.{j}": part for j, part in enumerate(parts)}
    states = [
        _plain(cache.state, f"state.{i}", arrays)
        for i, cache in enumerate(snapshot.caches if snapshot else ())
    ]
    header = {
        "format": FORMAT,
        "model": model,
        "tokens": list(tokens),
        "adapters": [list(adapter) for adapter in identity.adapters],
        "tenant": identity.tenant,
        "states": states,
        "exact_until": exact_until,
    }
    text = json.dumps(header)
    metadata = {"header": text, "checksum": _checksum(text, arrays)}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".slot-")
    try:
        with os.fdopen(handle, "wb") as file:
            mx.save_safetensors(file, arrays or {"empty": mx.zeros(1)}, metadata)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path.stat().st_size


def read_slot_file(path: Path, model: str) -> SlotFile:
    """Raises SlotFileError for a file that is absent, damaged, or not of this model and KV types."""
    if path.is_symlink() or not path.is_file():
        raise SlotFileError("there is no such file")
    try:
        with path.open("rb") as file:
            loaded: Any = mx.load(file, format="safetensors", return_metadata=True)
            arrays, metadata = loaded
            mx.eval(arrays)
        text = metadata["header"]
        header = json.loads(text)
        arrays.pop("empty", None)
        intact = metadata["checksum"] == _checksum(text, arrays)
    except (RuntimeError, ValueError, KeyError, OSError, TypeError) as error:
        raise SlotFileError(f"the file is damaged or no slot file ({type(error).__name__})") from error
    if not intact:
        raise SlotFileError("the file is damaged (its checksum differs)")
    if not isinstance(header, dict) or header.get("format") != FORMAT or header.get("model") != model:
        raise SlotFileError("the file belongs to another model or other KV types")
    try:
        return _slot_file(header, arrays)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlotFileError(f"the file's header is damaged ({type(error).__name__})") from error


def _slot_file(header: Mapping[str, Any], arrays: Mapping[str, mx.array]) -> SlotFile:
    """Raises an error of Python's own where the header is none that ``write_slot_file`` makes."""
    tokens, tenant, exact_until = tuple(header["tokens"]), header["tenant"], header["exact_until"]
    if not all(type(token) is int for token in tokens) or not isinstance(tenant, str):
        raise TypeError
    if exact_until is not None and not (type(exact_until) is int and exact_until >= 0):
        raise TypeError
    adapters = tuple((digest, scale) for digest, scale in header["adapters"])
    if not all(isinstance(digest, str) and type(scale) is float for digest, scale in adapters):
        raise TypeError
    identity = CacheIdentity(adapters, tenant)
    n_layers = sum(name.endswith(".keys.0") for name in arrays)
    layers = ((_parts(arrays, f"{i}.keys"), _parts(arrays, f"{i}.values")) for i in range(n_layers))
    states = tuple(_restored(state, arrays) for state in header["states"])
    return SlotFile(tokens, identity, KVSpan(tuple(layers)), states, exact_until)


def _parts(arrays: Mapping[str, mx.array], name: str) -> Parts:
    """The arrays ``name.0``, ``name.1``, ... as far as there are some."""
    names = itertools.takewhile(arrays.__contains__, (f"{name}.{j}" for j in itertools.count()))
    return tuple(arrays[each] for each in names)


def _plain(value: Any, name: str, arrays: dict[str, mx.array]) -> Any:
    """A cache's state as JSON: an array goes to ``arrays`` and leaves its name."""
    if isinstance(value, mx.array):
        arrays[name] = mx.contiguous(value)
        return {"array": name}
    if isinstance(value, (list, tuple)):
        return {"list": [_plain(part, f"{name}.{i}", arrays) for i, part in enumerate(value)]}
    return {"value": value}


def _restored(state: Mapping[str, Any], arrays: Mapping[str, mx.array]) -> Any:
    if "array" in state:
        return arrays[state["array"]]
    return [_restored(part, arrays) for part in state["list"]] if "list" in state else state["value"]


def raw_bytes(array: mx.array) -> memoryview:
    flat: Any = mx.contiguous(array).reshape(-1).view(mx.uint8)
    return memoryview(flat)


def _checksum(header: str, arrays: Mapping[str, mx.array]) -> str:
    digest = hashlib.blake2b(header.encode(), digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}{array.shape}{array.dtype}".encode())
        digest.update(raw_bytes(array))
    return digest.hexdigest()
