"""What one file of the disk tier is: the state of a few tokens behind others, and its header."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mlxserver.kv.block_hash import BLOCK_TOKENS, block_hash
from mlxserver.kv.identity import CacheIdentity, identity_of

FORMAT = "mlxserver-block-1"

_identity_of = functools.lru_cache(256)(identity_of)


class DiskError(Exception):
    """One line that says why the disk tier, or something in it, cannot be used."""


class Kind(Enum):
    BLOCK = "block"
    """Keys and values of the plain attention layers for the tokens."""
    SNAPSHOT = "snapshot"
    """State of the layers that cannot be cut, after the last of the tokens."""


Key = tuple[Kind, bytes]
"""A file is named by its kind and its hash."""


@dataclass(frozen=True, slots=True)
class Name:
    """What a file is for. ``hash`` is ``block_hash(parent, identity, tokens)``."""

    kind: Kind
    space: str
    """Folder of the model and KV types, as ``space_folder`` gives it."""
    hash: bytes
    parent: bytes
    """Hash of the full block before the tokens; the space's root where there is none."""
    identity: CacheIdentity
    tokens: bytes
    """``packed_tokens`` of 1 to ``BLOCK_TOKENS`` tokens."""
    start: int
    """Tokens before them."""
    bare: bool = False
    """A snapshot of a model without plain attention: no blocks go with it."""

    @property
    def key(self) -> Key:
        return self.kind, self.hash

    @property
    def n(self) -> int:
        return len(self.tokens) // 4

    @property
    def above(self) -> Key | None:
        """The block without which this file is of no use; None where there is none."""
        if self.kind is Kind.SNAPSHOT:
            return None if self.bare else (Kind.BLOCK, self.hash)
        return (Kind.BLOCK, self.parent) if self.start else None


@dataclass(slots=True, eq=False)
class Entry:
    """A file that is there. Belongs to the index."""

    name: Name
    nbytes: int
    """Of the file."""
    used: int
    """When it was used last, in nanoseconds since 1970."""
    above: Entry | None = None
    below: set[Entry] = field(default_factory=set)
    """Files that are of no use without this one."""
    readers: int = 0
    """It is not removed while this is not 0."""


def packed_tokens(tokens: Sequence[int]) -> bytes:
    """4 bytes a token, in an order that sorts as the tokens do."""
    return struct.pack(f">{len(tokens)}I", *tokens)


def unpacked_tokens(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(packed) // 4}I", packed)


def space_folder(space: str) -> str:
    """The name of the folder of a space."""
    return hashlib.sha256(space.encode()).hexdigest()[:16]


def header_of(name: Name, space: str, data_size: int, states: Sequence[Any] = ()) -> dict[str, Any]:
    """``data_size``: bytes of the arrays; ``states`` as ``snapshot_states`` gives them."""
    return {
        "format": FORMAT,
        "space": space,
        "kind": name.kind.value,
        "hash": name.hash.hex(),
        "parent": name.parent.hex(),
        "identity": name.identity.key.decode(),
        "tokens": list(unpacked_tokens(name.tokens)),
        "start": name.start,
        "bare": name.bare,
        "data": data_size,
        "states": list(states),
    }


def name_of(header: Mapping[str, Any]) -> Name:
    """Whose hash is the one of its tokens. Raises DiskError for a header that ``header_of`` does not make."""
    try:
        if header["format"] != FORMAT:
            raise DiskError("the file is of another version")
        tokens, start, bare = header["tokens"], header["start"], header["bare"]
        sound = type(start) is int and start >= 0 and start % BLOCK_TOKENS == 0 and type(bare) is bool
        sound = sound and 0 < len(tokens) <= BLOCK_TOKENS and type(header["data"]) is int
        name = Name(
            Kind(header["kind"]),
            space_folder(header["space"]),
            bytes.fromhex(header["hash"]),
            bytes.fromhex(header["parent"]),
            _identity_of(header["identity"].encode()),
            packed_tokens(tokens),
            start,
            bare,
        )
        sound = sound and block_hash(name.parent, name.identity, tokens) == name.hash
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise DiskError("the file's header is damaged") from error
    if not sound:
        raise DiskError("the file's header is damaged")
    return name
