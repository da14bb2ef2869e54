"""Tells which blocks slots and trie hold, for routers that look for stored prompts (``--kv-events``)."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxserver.engine.slot import Slot
from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain, root_hash
from mlxserver.kv.block_ledger import Block, BlockChange, BlockLedger, blocks_of
from mlxserver.kv.disk.books import DiskEvent
from mlxserver.kv.disk.entry import Kind
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.trie import Node, path_tokens


@dataclass(slots=True)
class _Watched:
    """What was told of a slot. New tokens of a slot are another list; a shift drops some in place."""

    chain: HashChain
    tokens: list[int]
    n_shifts: int
    blocks: list[Block]


class BlockWatch:
    """Observes trie and disk, and looks at the slots after each step. Only what others may reuse counts.

    ``wake`` is called, in the disk's thread, when there is something to take.
    """

    def __init__(self, space: str, wake: Callable[[], None] = lambda: None) -> None:
        self.root = root_hash(space)
        self._wake = wake
        self._from_disk: queue.SimpleQueue[DiskEvent] = queue.SimpleQueue()
        self._ledger = BlockLedger()
        self._slots: dict[int, _Watched] = {}
        self._nodes: dict[Node, list[Block]] = {}

    def stored(self, identity: CacheIdentity, node: Node) -> None:
        """The trie took in a node. What was moved from other positions is not told of."""
        if identity.is_shifted:
            return
        chain = HashChain(self.root, identity, path_tokens(node))
        self._nodes[node] = blocks_of(chain, node.start // BLOCK_TOKENS)
        self._ledger.add("ram", self._nodes[node])

    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut in two; a block belongs to the node of its last token."""
        blocks = self._nodes.pop(lower, [])
        n = upper.end // BLOCK_TOKENS - upper.start // BLOCK_TOKENS
        self._nodes[upper], self._nodes[lower] = blocks[:n], blocks[n:]

    def removed(self, node: Node) -> None:
        """The trie dropped a node."""
        self._ledger.remove("ram", self._nodes.pop(node, []))

    def on_disk(self, event: DiskEvent) -> None:
        """A file came or went. For any thread."""
        if event.kind is Kind.BLOCK and event.n_tokens == BLOCK_TOKENS:
            self._from_disk.put(event)
            self._wake()

    def look(self, slots: Sequence[Slot]) -> None:
        """Take in what the slots hold now."""
        for slot in slots:
            self._look_at(slot)

    def lose(self) -> None:
        """Slots and trie were replaced by empty ones."""
        for watched in self._slots.values():
            self._ledger.remove("slot", watched.blocks)
        for blocks in reversed(self._nodes.values()):
            self._ledger.remove("ram", blocks)
        self._slots, self._nodes = {}, {}

    def take(self) -> list[BlockChange]:
        """What changed since the last call, in order."""
        while not self._from_disk.empty():
            event = self._from_disk.get()
            block = Block(event.hash, event.parent, event.n_tokens, event.identity.adapter_id)
            change = self._ledger.add if event.is_stored else self._ledger.remove
            change("disk", [block])
        return self._ledger.take()

    def _look_at(self, slot: Slot) -> None:
        n = slot.n_exact
        watched = self._slots.get(slot.id)
        same = (
            watched is not None
            and watched.tokens is slot.tokens
            and watched.n_shifts == len(slot.shifts)
            and watched.chain.identity == slot.identity
            and watched.chain.n_tokens <= n
        )
        if watched is not None and same:
            if watched.chain.n_tokens < n:
                self._extend(watched, slot.tokens[watched.chain.n_tokens : n])
            return
        old = watched.blocks if watched else []
        chain = HashChain(self.root, slot.identity, slot.tokens[:n])
        new = _Watched(chain, slot.tokens, len(slot.shifts), blocks_of(chain))
        # what stays is held twice for a moment, and so is not told of
        self._ledger.add("slot", new.blocks)
        self._ledger.remove("slot", old)
        self._slots[slot.id] = new

    def _extend(self, watched: _Watched, tokens: Sequence[int]) -> None:
        n_before = len(watched.chain.hashes)
        watched.chain.extend(tokens)
        more = blocks_of(watched.chain, n_before)
        self._ledger.add("slot", more)
        watched.blocks += more
