"""Brings stored state from disk for requests that wait: each restore has one owner from start to end.

A restore first gets room in the trie for all that it will bring, then it reads. What arrives is published in
the trie, pinned, until its prompt takes it over; or it is dropped. Nothing here waits for the disk.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mlxserver.engine.disk_tier import BlockRef, Part
from mlxserver.engine.prefetch_policy import CHUNK_BLOCKS, StopReason
from mlxserver.engine.reader import Arrived, Reading
from mlxserver.engine.restore import Restore, Tier, affordable, missing_of
from mlxserver.engine.restore_books import RestoreBooks
from mlxserver.engine.task import DiskStats, Task

log = logging.getLogger("mlxserver.srv")

LEAST_GAIN = 16
"""Tokens that are rather evaluated than read."""


class Restores:
    """Without a disk tier nobody ever waits here, and nothing happens."""

    def __init__(
        self,
        tier: Tier | None,
        held: Callable[[Task], int],
        seconds_per_token: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """``held`` tells how many tokens of a prompt memory gives."""
        self._tier = tier
        self._held = held
        self._seconds_per_token = seconds_per_token
        self._clock = clock
        self._serials = itertools.count()
        self._restores: dict[int, Restore] = {}
        self._rooms: dict[Reading, int] = {}
        """Bytes that are reserved in the trie for what a reading still brings, until its last message."""
        self._has_news = False
        """Some restore was settled since ``wake``."""
        self.books = RestoreBooks()

    # ---------------------------------------------------------------- tasks

    def enter(self, task: Task) -> None:
        """A task enters the queue: begin to read what memory does not have of its prompt."""
        if self._tier is None or not task.cache_prompt or task.is_embedding:
            return
        restore = Restore(task, next(self._serials), self._clock())
        self._restores[task.id] = restore
        self._look(self._tier, restore)
        self.admit()

    def holds(self, task: Task, is_busy: bool) -> bool:
        """Whether a task that could start now rather waits for the disk.

        ``is_busy``: other tasks run, so that room may be made in the trie.
        """
        restore = self._restores.get(task.id)
        if self._tier is None or restore is None:
            return False
        if restore.t_ready is None:
            self._could_start(self._tier, restore)
        if restore.reading is None and not restore.is_settled:
            self.admit()
        if restore.is_settled:
            return False
        if self._clock() >= self._deadline(restore):
            self._settle(restore, self._tier.policy.reason)
        elif restore.reading is None and not is_busy and not self._rooms:
            self._settle(restore, "no_room")  # nobody would ever make some
        return not restore.is_settled

    def is_awaited(self, task_id: int) -> bool:
        """Whether a task could start but for its restore."""
        restore = self._restores.get(task_id)
        return restore is not None and restore.t_ready is not None and not restore.is_settled

    def started(self, task_id: int, stored: range) -> int | None:
        """A task took over these tokens from the trie. How many of them were read from disk for it.

        None without a disk tier.
        """
        if self._tier is None:
            return None
        restore = self._restores.pop(task_id, None)
        if restore is None:
            return 0
        self._settle(restore, "scheduled")
        read = (restore.start, restore.n) if restore.published else (0, 0)
        taken = range(max(stored.start, read[0]), min(stored.stop, read[1]))
        for part in restore.published:
            is_used = part.start < taken.stop and part.end > taken.start and taken
            (self.books.hit if is_used else self.books.wasted).add(part)
        restore.published.clear()
        self._let_go(restore)
        return len(taken)

    def leave(self, task_id: int) -> None:
        """A task went away: what was held for it is given back. Nothing where it has started."""
        restore = self._restores.pop(task_id, None)
        if restore is not None:
            self._settle(restore, "cancelled")
            self._let_go(restore)

    def replace(self, other: Restores) -> None:
        """Go on counting where another one, whose trie is lost, ended. Its tasks enter anew."""
        restores, other._restores = other._restores, {}
        for restore in restores.values():
            other._settle(restore, "cancelled")
            other._let_go(restore)
        self.books = other.books

    # -------------------------------------------------------------- arrivals

    def arrived(self, message: Arrived) -> None:
        """Something was read, or a reading ended."""
        reading, part = message.reading, message.part
        self.books.seconds += message.seconds
        restore = next((each for each in self._restores.values() if each.reading is reading), None)
        if part is not None:
            self.books.read.add(part)
            if self._tier is None or restore is None or restore.is_settled:
                self.books.waste([part])
            else:
                self._take(self._tier, restore, part)
        if message.error:
            log.warning("stored state cannot be read: %s", message.error)
        if message.is_last:
            self._give_back(reading)
            if restore is not None:
                self._settle(restore, "error" if message.error else "complete")

    def admit(self) -> None:
        """Begin the readings for which there is room, in order; those behind one without room wait too.

        Room is made by steps and by messages: each plan tries it again.
        """
        waiting = [each for each in self._restores.values() if not each.is_settled and each.reading is None]
        for restore in sorted(waiting, key=lambda each: (each.t_ready is None, each.serial)):
            assert self._tier is not None
            if not self._begin(self._tier, restore):
                return

    # ----------------------------------------------------------------- time

    @property
    def wake_at(self) -> float | None:
        """When to call ``wake``, by the clock; None for never."""
        soonest = min((self._deadline(each) for each in self._open()), default=math.inf)
        return None if soonest == math.inf else soonest

    def wake(self) -> bool:
        """Take note of the time, and of room that was made. Whether a task may go on."""
        if not self._restores:
            return False
        self.admit()
        now = self._clock()
        due = [each for each in self._open() if now >= self._deadline(each)]
        for restore in due:
            restore.is_due = True
            if self._tier is not None and self._tier.policy.name == "timeout":
                self._settle(restore, "timeout")
        has_news, self._has_news = self._has_news, False
        return bool(due) or has_news

    def check(self, waiting: Sequence[int]) -> None:
        """Raise AssertionError where something is held that no waiting task and no reading needs."""
        assert set(self._restores) <= set(waiting), "a restore outlived its task"
        if self._tier is None:
            return
        assert sum(self._rooms.values()) == self._tier.trie.reserved, "reserved room is miscounted"
        kept = (part for each in self._restores.values() for part in (*each.published, *each.arrived))
        self.books.check(kept)

    def stats(self) -> DiskStats | None:
        """None without a disk tier."""
        if self._tier is None:
            return None
        return self.books.stats(self._tier.disk.stats())

    @property
    def has_pins(self) -> bool:
        """Whether nodes of the trie are pinned for a task that waits."""
        return any(each.node is not None for each in self._restores.values())

    # --------------------------------------------------------------- phases

    def _open(self) -> Iterator[Restore]:
        """Those whose time may come."""
        return (each for each in self._restores.values() if not each.is_settled and not each.is_due)

    def _deadline(self, restore: Restore) -> float:
        assert self._tier is not None
        gained, cost = restore.n - restore.n_ready, self._seconds_per_token()
        return self._tier.policy.deadline(restore.t_entered, restore.t_ready, gained, cost)

    def _look(self, tier: Tier, restore: Restore) -> None:
        """Find what could be read. A restore for which that is nothing is settled."""
        task = restore.task
        most = task.n_reusable
        restore.match, restore.is_settled = None, True
        try:
            # of a block that ends with the token behind the reusable ones all but that is of use
            match = tier.disk.find(task.identity, task.tokens[: most + tier.cuts], tier.cuts)
        except Exception:  # no request fails for what it could have read
            log.exception("the disk cache cannot be asked")
            return
        if min(match.n, most) >= self._held(task) + LEAST_GAIN:
            restore.match, restore.is_settled = match, False
            restore.n = self._in_reach(tier, restore)

    def _could_start(self, tier: Tier, restore: Restore) -> None:
        """What memory had of the prompt when it entered may be gone meanwhile."""
        restore.t_ready = self._clock()
        if restore.match is None and restore.t_ready > restore.t_entered:
            self._look(tier, restore)
        restore.n_ready = restore.n = max(restore.n, self._in_reach(tier, restore))
        if restore.reading is not None:
            tier.reader.hurry(restore.reading)

    def _in_reach(self, tier: Tier, restore: Restore) -> int:
        """Tokens that the prompt can take over from the trie, as far as there is something to read beyond."""
        if restore.match is None:
            return 0
        found = tier.trie.match(restore.task.identity, restore.task.tokens[: restore.match.n])
        if tier.cuts:
            return found.n
        node = found.snapshot(found.n)
        return node.end if node else 0

    def _begin(self, tier: Tier, restore: Restore) -> bool:
        """Make room for all that is to be read, and begin to read it. False: there is no room."""
        assert restore.match is not None
        found = tier.trie.match(restore.task.identity, restore.task.tokens[: restore.match.n])
        missing = missing_of(restore.match, found)
        if not missing:
            self._settle(restore, None)
            return True
        if self._is_being_read(missing[0]):
            return True
        refs = affordable(missing, found, tier.trie.limit, tier.cuts)
        if not refs:
            self._settle(restore, "no_room")
            return True
        node, nbytes = found.nodes[-1] if found.nodes else None, sum(ref.nbytes for ref in refs)
        if node is not None:
            tier.trie.pin(node)
        if not tier.trie.reserve(nbytes):
            if node is not None:
                tier.trie.unpin(node)
            return False
        chunks = tuple(tuple(refs[i : i + CHUNK_BLOCKS]) for i in range(0, len(refs), CHUNK_BLOCKS))
        restore.reading = Reading(chunks, restore.serial, restore.t_ready is not None)
        restore.node = node
        restore.start = restore.n = self._in_reach(tier, restore)
        self._rooms[restore.reading] = nbytes
        tier.reader.begin(restore.reading)
        return True

    def _is_being_read(self, ref: BlockRef) -> bool:
        """Whether a restore reads it that has not ended: what it publishes serves others too."""
        reading = (each.reading for each in self._restores.values() if each.reading and not each.is_settled)
        return any(ref.key == other.key for each in reading for chunk in each.chunks for other in chunk)

    def _take(self, tier: Tier, restore: Restore, part: Part) -> None:
        """Publish a part that arrived, with those that waited for it."""
        reading = restore.reading
        assert reading is not None
        restore.is_due = False
        restore.arrived.append(part)
        if not tier.cuts and not part.has_snapshot:
            return
        self._release(reading, sum(each.nbytes for each in restore.arrived))
        try:
            node = tier.publish(restore.task.identity, restore.task.tokens, restore.arrived)
        except Exception:
            log.exception("stored state cannot be used")
            self._settle(restore, "error")
            return
        if node is None:
            self._settle(restore, "no_room")
            return
        tier.trie.pin(node)
        if restore.node is not None:
            tier.trie.unpin(restore.node)
        restore.node, restore.n = node, part.end
        restore.published += [replace(each, state=None) for each in restore.arrived]
        restore.arrived.clear()
        for other in self._restores.values():
            if other.reading is None and not other.is_settled:
                other.n = max(other.n, self._in_reach(tier, other))

    def _settle(self, restore: Restore, reason: StopReason | None) -> None:
        """Read no more. ``reason`` None: there is nothing to be read any more."""
        if restore.is_settled:
            return
        restore.is_settled = self._has_news = True
        if reason is not None:
            self.books.stops[reason] += 1
        self.books.waste(restore.arrived)
        restore.arrived.clear()
        reading = restore.reading
        if self._tier is not None and reading in self._rooms and self._tier.reader.stop(reading):
            self._give_back(reading)

    def _let_go(self, restore: Restore) -> None:
        """Nothing is pinned or counted for it any more."""
        self.books.waste(restore.published)
        restore.published.clear()
        if self._tier is not None and restore.node is not None:
            self._tier.trie.unpin(restore.node)
            restore.node = None

    def _release(self, reading: Reading, nbytes: int) -> None:
        """Room of a reading that its state takes now."""
        assert self._tier is not None
        nbytes = min(nbytes, self._rooms[reading])
        self._rooms[reading] -= nbytes
        self._tier.trie.release(nbytes)

    def _give_back(self, reading: Reading) -> None:
        """Nothing of a reading is in flight any more."""
        nbytes = self._rooms.pop(reading, 0)
        if self._tier is not None and nbytes:
            self._tier.trie.release(nbytes)
