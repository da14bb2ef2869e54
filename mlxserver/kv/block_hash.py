"""Names for runs of tokens by what their state depends on: a chain of hashes, one for each full block.

``hash = SHA-256(parent || n || tokens || key)``: the hash of the block before (of the first one the root),
the number of tokens and each of them as 32-bit little-endian integers, and the identity's key. The key goes
into every block, so that no chain ever runs into another identity's; the base model's is empty.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence

from mlxserver.kv.identity import CacheIdentity

BLOCK_TOKENS = 32


def root_hash(space: str) -> bytes:
    """The parent of every first block. ``space`` names what is fixed for a process: model, KV types."""
    return hashlib.sha256(space.encode()).digest()


def block_hash(parent: bytes, identity: CacheIdentity, tokens: Sequence[int]) -> bytes:
    """The hash of ``tokens``, a block or the beginning of one, behind the blocks up to ``parent``."""
    packed = struct.pack(f"<{len(tokens) + 1}I", len(tokens), *tokens)
    return hashlib.sha256(parent + packed + identity.key).digest()


class HashChain:
    """The hashes of the full blocks of a sequence that grows."""

    def __init__(self, root: bytes, identity: CacheIdentity, tokens: Iterable[int] = ()) -> None:
        self.root = root
        self.identity = identity
        self.hashes: list[bytes] = []
        self._rest = array("i")
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> list[bytes]:
        """The hashes of the blocks that are full now and were not before."""
        self._rest.extend(tokens)
        n_before = len(self.hashes)
        n_full = len(self._rest) // BLOCK_TOKENS
        for i in range(n_full):
            block = self._rest[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
            self.hashes.append(block_hash(self.last, self.identity, block))
        del self._rest[: n_full * BLOCK_TOKENS]
        return self.hashes[n_before:]

    @property
    def last(self) -> bytes:
        """The hash that the next block follows."""
        return self.hashes[-1] if self.hashes else self.root

    @property
    def n_tokens(self) -> int:
        return len(self.hashes) * BLOCK_TOKENS + len(self._rest)
