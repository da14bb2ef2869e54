"""Which files the disk tier holds, as a tree: what of a prompt is there, and what goes first.

Plain data without I/O. A file that is of no use without another hangs below it: a block below the block
before it, a snapshot below the block that it ends. Only what nothing hangs on is ever removed for room, so
that a chain never has a hole.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain, block_hash
from mlxserver.kv.disk.entry import Entry, Key, Kind, Name, packed_tokens
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.prefix import common_prefix

STALE = 8
"""Entries a file that the heap of leaves may hold before it is made anew."""


@dataclass(frozen=True, slots=True)
class DiskRef:
    """The tokens ``[start, end)`` of one file; of a block maybe only the first of its tokens."""

    key: Key
    start: int
    end: int
    nbytes: int
    """Of the whole file."""


@dataclass(frozen=True, slots=True)
class DiskMatch:
    """The first ``n`` tokens of a prompt: ``blocks`` without a gap, and the snapshot at their end where state
    cannot be cut. A model without plain attention has no blocks."""

    n: int = 0
    blocks: tuple[DiskRef, ...] = ()
    snapshot: DiskRef | None = None

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in (*self.blocks, *((self.snapshot,) if self.snapshot else ())))


class Run:
    """A sequence as the files that it would be in: full blocks, then maybe a shorter one."""

    def __init__(self, root: bytes, identity: CacheIdentity, tokens: Sequence[int]) -> None:
        self.identity = identity
        self.packed = packed_tokens(tokens)
        self.n = len(tokens)
        self.hashes = HashChain(root, identity, tokens).hashes
        self._root = root
        n_tail = len(tokens) % BLOCK_TOKENS
        if n_tail:
            self.hashes.append(block_hash(self.parent(len(self.hashes)), identity, tokens[-n_tail:]))

    def parent(self, i: int) -> bytes:
        """The hash before the ``i``-th file."""
        return self.hashes[i - 1] if i else self._root

    def tokens(self, i: int) -> bytes:
        """Packed, of the ``i``-th file."""
        return self.packed[i * BLOCK_TOKENS * 4 : (i + 1) * BLOCK_TOKENS * 4]

    def end(self, i: int) -> int:
        return min((i + 1) * BLOCK_TOKENS, self.n)


class Index:
    """Everything is at most ``limit`` bytes together (None: no bound) once room has been made."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.nbytes = 0
        self.n_snapshots = 0
        self.stuck = 0
        """Bytes of files that are of no use and could not be removed."""
        self.touched: set[Entry] = set()
        """Used since somebody emptied it."""
        self.entries: dict[Key, Entry] = {}
        self._blocks: dict[tuple[bytes, CacheIdentity], list[tuple[bytes, bytes]]] = {}
        """(packed tokens, hash), sorted, of the blocks behind a hash."""
        self._snapshots: dict[tuple[bytes, CacheIdentity], dict[bytes, Entry]] = {}
        """Those that end in a block behind a hash, by the packed tokens from there."""
        self._leaves: list[tuple[int, int, Entry]] = []
        """A heap of (last used, serial, entry); those that have moved on are skipped."""
        self._serial = itertools.count()
        self._clock = 0

    # --------------------------------------------------------------- asking

    def find(self, run: Run, cuts: bool) -> DiskMatch:
        """The longest prefix whose state is there. Changes nothing.

        ``cuts``: state can be cut anywhere; otherwise only prefixes that end at a snapshot count.
        """
        return self._find_cut(run) if cuts else self._find_snapshot(run)

    def _find_cut(self, run: Run) -> DiskMatch:
        refs: list[DiskRef] = []
        for i, each in enumerate(run.hashes):
            entry = self.entries.get((Kind.BLOCK, each))
            if entry is None:
                break
            refs.append(_ref(entry, run.end(i)))
        start = refs[-1].end if refs else 0
        if start < run.n:
            i = len(refs)
            entry, n = self._nearest(run.parent(i), run.identity, run.tokens(i))
            if entry is not None and n:
                refs.append(_ref(entry, start + n))
        return DiskMatch(refs[-1].end if refs else 0, tuple(refs))

    def _find_snapshot(self, run: Run) -> DiskMatch:
        for i in range(len(run.hashes) - 1, -1, -1):
            behind = self._snapshots.get((run.parent(i), run.identity))
            if not behind:
                continue
            tokens = run.tokens(i)
            for n in range(len(tokens) // 4, 0, -1):
                entry = behind.get(tokens[: 4 * n])
                if entry is not None:
                    return self._match(run, i, entry)
        return DiskMatch()

    def _match(self, run: Run, i: int, snapshot: Entry) -> DiskMatch:
        end = snapshot.name.start + snapshot.name.n
        keys = [(Kind.BLOCK, each) for each in run.hashes[:i]] if snapshot.above else []
        blocks = [self.entries[key] for key in keys] + ([snapshot.above] if snapshot.above else [])
        refs = tuple(_ref(entry, entry.name.start + entry.name.n) for entry in blocks)
        return DiskMatch(end, refs, _ref(snapshot, end))

    def _nearest(self, parent: bytes, identity: CacheIdentity, tokens: bytes) -> tuple[Entry | None, int]:
        """Of the blocks behind ``parent`` the one that agrees with most of ``tokens``; with how many."""
        siblings = self._blocks.get((parent, identity), [])
        at = bisect.bisect_left(siblings, (tokens,))
        best, most = None, 0
        for packed, digest in siblings[max(0, at - 1) : at + 1]:  # the nearest in order agree with most
            n = common_prefix(packed, tokens) // 4
            if n > most:
                best, most = self.entries[Kind.BLOCK, digest], n
        return best, most

    def longer(self, parent: bytes, identity: CacheIdentity, tokens: bytes) -> Entry | None:
        """A block behind ``parent`` that begins with these tokens."""
        entry, n = self._nearest(parent, identity, tokens)
        return entry if 4 * n == len(tokens) else None

    def shorter(self, name: Name) -> list[Entry]:
        """The blocks that are only a beginning of this one and that nothing hangs on."""
        siblings = self._blocks.get((name.parent, name.identity), [])
        found = []
        for n in range(1, name.n):
            at = bisect.bisect_left(siblings, (name.tokens[: 4 * n],))
            if at < len(siblings) and siblings[at][0] == name.tokens[: 4 * n]:
                entry = self.entries[Kind.BLOCK, siblings[at][1]]
                if not entry.below and not entry.readers:
                    found.append(entry)
        return found

    # ------------------------------------------------------------- changing

    def touch(self, entry: Entry) -> None:
        entry.used = self._now()
        self.touched.add(entry)
        self._offer(entry)

    def hold(self, entry: Entry) -> None:
        """Keep it until ``release``."""
        entry.readers += 1

    def release(self, entry: Entry) -> None:
        entry.readers -= 1
        self._offer(entry)

    def add(self, name: Name, nbytes: int, used: int | None = None) -> Entry | None:
        """None where it is there already, or where what it hangs on is not."""
        above = self.entries.get(name.above) if name.above else None
        if name.key in self.entries or (name.above and above is None):
            return None
        # a clock that was set back must not make what is used now look older than what is there
        self._clock = max(self._clock, used or 0)
        entry = Entry(name, nbytes, self._now() if used is None else used, above)
        self.entries[name.key] = entry
        self.nbytes += nbytes
        self.n_snapshots += name.kind is Kind.SNAPSHOT
        if above is not None:
            above.below.add(entry)
        place = name.parent, name.identity
        if name.kind is Kind.BLOCK:
            bisect.insort(self._blocks.setdefault(place, []), (name.tokens, name.hash))
        else:
            self._snapshots.setdefault(place, {})[name.tokens] = entry
        self._offer(entry)
        return entry

    def remove(self, entry: Entry) -> list[Entry]:
        """Take it out with everything below it; the lowest come first."""
        gone = list(_downwards(entry))[::-1]
        for each in gone:
            self._take_out(each)
        return gone

    def oldest(self) -> Entry | None:
        """What was used longest ago of what nothing hangs on and nobody reads."""
        while self._leaves:
            used, _, entry = self._leaves[0]
            if used == entry.used and self._may_go(entry):
                return entry
            heapq.heappop(self._leaves)
        return None

    def exceeds(self, nbytes: int) -> bool:
        """Whether so many bytes more would be too many."""
        return self.limit is not None and self.nbytes + self.stuck + nbytes > self.limit

    def check(self) -> None:
        """Raise AssertionError where the books do not add up."""
        assert self.nbytes == sum(entry.nbytes for entry in self.entries.values()), "bytes are miscounted"
        for key, entry in self.entries.items():
            assert entry.name.key == key and entry.readers >= 0
            above = self.entries.get(entry.name.above) if entry.name.above else None
            assert entry.above is above, "a file hangs on another than its name says"
            assert (above is None) == (entry.name.above is None), "there is a hole"
            assert above is None or entry in above.below, "a file is not below the one that it hangs on"
            assert all(each.above is entry for each in entry.below), "a file that is gone still hangs here"
        n = sum(map(len, self._blocks.values())) + sum(map(len, self._snapshots.values()))
        assert n == len(self.entries), "files are miscounted"

    def _take_out(self, entry: Entry) -> None:
        name = entry.name
        del self.entries[name.key]
        self.touched.discard(entry)
        self.nbytes -= entry.nbytes
        self.n_snapshots -= name.kind is Kind.SNAPSHOT
        place = name.parent, name.identity
        if name.kind is Kind.BLOCK:
            siblings = self._blocks[place]
            del siblings[bisect.bisect_left(siblings, (name.tokens, name.hash))]
            if not siblings:
                del self._blocks[place]
        else:
            del self._snapshots[place][name.tokens]
            if not self._snapshots[place]:
                del self._snapshots[place]
        if entry.above is not None:
            entry.above.below.discard(entry)
            self._offer(entry.above)
            entry.above = None

    def _may_go(self, entry: Entry) -> bool:
        return not entry.below and not entry.readers and self.entries.get(entry.name.key) is entry

    def _offer(self, entry: Entry) -> None:
        """Note that an entry may be one that can go."""
        if not self._may_go(entry):
            return
        if len(self._leaves) > STALE * len(self.entries) + STALE:
            leaves = (each for each in self.entries.values() if self._may_go(each))
            self._leaves = [(each.used, next(self._serial), each) for each in leaves]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (entry.used, next(self._serial), entry))

    def _now(self) -> int:
        """Later than ever before."""
        self._clock = max(self._clock + 1, time.time_ns())
        return self._clock


def _ref(entry: Entry, end: int) -> DiskRef:
    return DiskRef(entry.name.key, entry.name.start, end, entry.nbytes)


def _downwards(entry: Entry) -> Iterator[Entry]:
    """The entry and all below it, each before those below it."""
    pending = [entry]
    while pending:
        each = pending.pop()
        yield each
        pending += each.below
