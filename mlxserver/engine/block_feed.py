"""The event loop's side of the blocks: what is held now, and who wants to hear of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby

from mlxserver.kv.block_ledger import BlockChange

MAX_BEHIND = 100_000
"""Changes that a listener may not have read yet; it is cut off then and may begin anew."""


class BlockFeed:
    """A listener first gets everything that is held, then each change. For the event loop only."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, bytes], BlockChange] = {}
        self._listeners: set[_Listener] = set()
        self.has_ended = False

    def take_in(self, changes: Sequence[BlockChange]) -> None:
        """The engine's changes, in order."""
        for change in changes:
            key = change.tier, change.block.hash
            if change.kind == "stored":
                self._held[key] = change
            else:
                self._held.pop(key, None)
        for listener in self._listeners:
            listener.hear(changes)

    def end(self) -> None:
        """No more changes come."""
        self.has_ended = True
        for listener in self._listeners:
            listener.cut_off()

    async def listen(self) -> AsyncGenerator[list[BlockChange]]:
        """Lists of changes of one kind, tier and adapter set each; ends for a listener that is too slow."""
        listener = _Listener(list(self._held.values()))
        self._listeners.add(listener)
        try:
            while (changes := await listener.next()) is not None:
                for _, alike in groupby(changes, key=lambda c: (c.kind, c.tier, c.block.adapter_id)):
                    yield list(alike)
        finally:
            self._listeners.discard(listener)


class _Listener:
    def __init__(self, changes: list[BlockChange]) -> None:
        self._changes = changes
        self._arrived = asyncio.Event()
        self._is_cut_off = False

    def hear(self, changes: Sequence[BlockChange]) -> None:
        if self._is_cut_off or len(self._changes) + len(changes) > MAX_BEHIND:
            self.cut_off()
            return
        self._changes += changes
        self._arrived.set()

    def cut_off(self) -> None:
        """Nothing is kept for a listener that may take for ever to find out."""
        self._is_cut_off, self._changes = True, []
        self._arrived.set()

    async def next(self) -> list[BlockChange] | None:
        """What came since the last call; waits for something. None for who has fallen behind."""
        while not self._changes and not self._is_cut_off:
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_cut_off:
            return None
        changes, self._changes = self._changes, []
        return changes
