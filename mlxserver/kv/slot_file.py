"""A slot's tokens and state in a safetensors file that says what it belongs to.

The header carries the tokens, the identity of the state and a checksum; a file that does not belong here,
or is damaged, is refused before anything is changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.state_file import StateFileError, arrays_of, packed, read_state
from mlxserver.kv.state_names import snapshot_states, span_of, span_tensors, states_of

FORMAT = "mlxserver-slot-3"
READABLE = {"mlxserver-slot-2", FORMAT}
"""Version 2 has another checksum."""
TEMPORARY = ".slot.."
"""How the names of files that are being written begin; no request can name such a file."""


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
    tensors = span_tensors(span)
    states = snapshot_states(snapshot, tensors) if snapshot else []
    header = {
        "format": FORMAT,
        "model": model,
        "tokens": list(tokens),
        "adapters": [list(adapter) for adapter in identity.adapters],
        "tenant": identity.tenant,
        "states": states,
        "exact_until": exact_until,
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.writelines(packed(header, tensors))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path.stat().st_size


def remove_leftovers(folder: Path) -> None:
    """Remove what a server that was killed was writing into a folder of slot files.

    Another server may be writing there just now: its file is locked, and stays.
    """
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{TEMPORARY}*"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def read_slot_file(path: Path, model: str) -> SlotFile:
    """Raises SlotFileError for a file that is absent, damaged, or not of this model and KV types."""
    try:
        with opened(path) as file:
            header, tensors = read_state(file)
    except OSError as error:
        raise SlotFileError(f"the file cannot be read ({type(error).__name__})") from error
    except StateFileError as error:
        raise SlotFileError(str(error)) from error
    is_ours = isinstance(header, dict) and isinstance(header.get("format"), str)
    if not is_ours or header["format"] not in READABLE or header.get("model") != model:
        raise SlotFileError("the file belongs to another model or other KV types")
    try:
        return _slot_file(header, arrays_of(tensors))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlotFileError(f"the file's header is damaged ({type(error).__name__})") from error


def opened(path: Path) -> FileIO:
    """Follows no link and waits for no pipe. Raises SlotFileError where there is no file, OSError else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            raise SlotFileError("there is no such file") from None
        raise
    file = FileIO(handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise SlotFileError("there is no such file")
    return file


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
    return SlotFile(tokens, identity, span_of(arrays), states_of(header["states"], arrays), exact_until)
