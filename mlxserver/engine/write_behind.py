"""Hands state that is new in slots and trie to the disk tier, a portion at a time, on the engine thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mlxserver.engine.slot import Slot
from mlxserver.kv.block_hash import BLOCK_TOKENS
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSnapshot

log = logging.getLogger("mlxserver.srv")

PORTION_BYTES = 64 * 2**20
"""Copied at once; streams wait for it."""
RETRY_SECONDS = 0.05
"""After which a full queue is asked again."""

Outcome = Literal["done", "more", "full"]


@dataclass(slots=True)
class _Noted:
    """An idle slot whose state may not be on disk; as long as it holds these tokens."""

    slot: Slot
    tokens: list[int]


class WriteBehind:
    """``queue_limit``: most bytes that may wait to be written. Errors cost what they belong to, no more."""

    def __init__(self, store: DiskStore, states: SlotStates, queue_limit: int) -> None:
        self._store = store
        self._states = states
        self._queue_limit = queue_limit
        self._noted: dict[int, _Noted] = {}
        self._retry_at: float | None = None

    def note(self, slot: Slot) -> None:
        """A task of the slot ended; what it holds is to be trusted."""
        self._noted.pop(slot.id, None)
        if slot.tokens and not slot.identity.is_shifted:
            self._noted[slot.id] = _Noted(slot, slot.tokens)

    @property
    def is_busy(self) -> bool:
        """Whether something could be handed over now."""
        return bool(self._noted) and (self._retry_at is None or time.perf_counter() >= self._retry_at)

    @property
    def wake_at(self) -> float | None:
        """When to go on."""
        return self._retry_at if self._noted else None

    def work(self) -> None:
        """Hand over a portion of what is noted, where there is room for it in the queue."""
        if not self.is_busy:
            return
        self._retry_at = None
        slot_id, noted = next(iter(self._noted.items()))
        outcome: Outcome = "done"  # what a slot has lost went to the trie, and to the disk from there
        if noted.slot.tokens is noted.tokens:
            outcome = self._guarded(lambda: self._write_slot(noted.slot))
        if outcome == "done":
            del self._noted[slot_id]
        elif outcome == "full":
            self._retry_at = time.perf_counter() + RETRY_SECONDS

    def finish(self, seconds: float) -> None:
        """Hand over all that is noted, for at most so long."""
        end = time.perf_counter() + seconds
        while self._noted and time.perf_counter() < end:
            self.work()
            if self._retry_at is not None:
                time.sleep(RETRY_SECONDS)

    def saved(
        self, slot: int, identity: CacheIdentity, tokens: Sequence[int], snapshot: KVSnapshot | None
    ) -> None:
        """The trie took in the state of a slot's first tokens; what the queue has no room for is left out."""
        if identity.is_shifted:
            return
        while self._guarded(lambda: self._write(slot, identity, tokens, lambda: snapshot)) == "more":
            pass

    def _guarded(self, write: Callable[[], Outcome]) -> Outcome:
        """No request fails for what is written of it."""
        try:
            return write()
        except Exception:
            log.exception("state cannot be written to the disk cache")
            return "done"

    def _write_slot(self, slot: Slot) -> Outcome:
        states, n = self._states, slot.n_exact
        if states.length(slot.id) < n:
            return "done"  # a step that was to bring them has failed
        if not states.is_plain:
            if n < len(slot.tokens) or not states.can_truncate(slot.id, n):
                return "done"
            states.truncate(slot.id, n)
        return self._write(slot.id, slot.identity, slot.tokens[:n], lambda: states.read_snapshot(slot.id))

    def _write(
        self,
        slot: int,
        identity: CacheIdentity,
        tokens: Sequence[int],
        snapshot: Callable[[], KVSnapshot | None],
    ) -> Outcome:
        """A portion of what is missing of the state of a slot's first tokens."""
        states, store = self._states, self._store
        missing = store.missing(identity, tokens, has_snapshot=not states.is_plain)
        if not missing:
            return "done"
        start, width = missing.start, states.bytes_per_token
        most = max(1, PORTION_BYTES // max(1, width) // BLOCK_TOKENS) * BLOCK_TOKENS
        end = min(len(tokens), start + most)
        is_last = end == len(tokens)
        last = snapshot() if is_last and missing.snapshot else None
        nbytes = (end - start) * width + (last.nbytes if last else 0)
        if nbytes > self._queue_limit:
            return "done"
        if store.stats().queued_bytes + nbytes > self._queue_limit:
            return "full"
        store.put(identity, tokens[:end], start, states.read_span(slot, start, end), last)
        return "done" if is_last else "more"
