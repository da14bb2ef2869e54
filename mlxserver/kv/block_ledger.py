"""Which blocks of prompts are held where, and what changed since it was last asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain

Tier = Literal["slot", "ram", "disk"]
"""A slot's live state, the prefix trie, the disk."""


@dataclass(frozen=True, slots=True)
class Block:
    """``parent`` is the hash of the block before it, the root's for the first."""

    hash: bytes
    parent: bytes
    n_tokens: int
    adapter_id: str


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A tier holds a block that it did not hold, or no longer holds it."""

    kind: Literal["stored", "removed"]
    tier: Tier
    block: Block


def blocks_of(chain: HashChain, start: int = 0) -> list[Block]:
    """The full blocks of a chain from the ``start``-th on."""
    adapter_id = chain.identity.adapter_id
    parents = [chain.root, *chain.hashes]
    return [
        Block(hash, parent, BLOCK_TOKENS, adapter_id)
        for hash, parent in zip(chain.hashes[start:], parents[start:], strict=False)
    ]


class BlockLedger:
    """Several slots may hold a block: it is told when the first has it and when the last has lost it."""

    def __init__(self) -> None:
        self._held: Counter[tuple[Tier, bytes]] = Counter()
        self._changes: list[BlockChange] = []

    def add(self, tier: Tier, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self._held[tier, block.hash] += 1
            if self._held[tier, block.hash] == 1:
                self._changes.append(BlockChange("stored", tier, block))

    def remove(self, tier: Tier, blocks: Sequence[Block]) -> None:
        """Children before their parents, so that no block is ever told of without those before it."""
        for block in reversed(blocks):
            self._held[tier, block.hash] -= 1
            if self._held[tier, block.hash] == 0:
                del self._held[tier, block.hash]
                self._changes.append(BlockChange("removed", tier, block))

    def take(self) -> list[BlockChange]:
        """What changed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes
