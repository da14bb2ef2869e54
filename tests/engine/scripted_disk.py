"""A disk tier that reads when it is told to: stored sequences, a reader without a thread, a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mlxserver.engine.disk_tier import Part
from mlxserver.engine.plan import Load, Plan
from mlxserver.engine.prefetch_policy import PolicyName, PrefetchPolicy
from mlxserver.engine.reader import Arrived, Reading
from mlxserver.engine.restore import Tier
from mlxserver.engine.task import Failed, Finished, Started
from mlxserver.kv.block_hash import BLOCK_TOKENS
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.prefix import common_prefix
from mlxserver.kv.trie import Node, PrefixTrie
from tests.engine.test_scheduler import AnyCut, Harness, NoCut

BYTES = 10
"""Of one token's state."""
SNAPSHOT = 50
"""Bytes of a snapshot."""


@dataclass(frozen=True)
class Ref:
    key: tuple[CacheIdentity, str, tuple[int, ...]]
    start: int
    end: int
    nbytes: int


@dataclass(frozen=True)
class Found:
    n: int = 0
    blocks: tuple[Ref, ...] = ()
    snapshot: Ref | None = None


@dataclass
class Shelf:
    """The sequences that are stored, whole; for state that cannot be cut with a snapshot at their end."""

    stored: list[tuple[CacheIdentity, tuple[int, ...]]] = field(default_factory=list)

    def find(self, identity: CacheIdentity, tokens: Sequence[int], cuts: bool) -> Found:
        best = Found()
        for owner, sequence in self.stored:
            n = common_prefix(list(sequence), list(tokens))
            if owner == identity and n > best.n and (cuts or n == len(sequence)):
                best = Found(
                    n, self._blocks(owner, sequence[:n]), None if cuts else self._end(owner, sequence)
                )
        return best

    def stats(self) -> Any:
        return SimpleNamespace(
            blocks=3,
            snapshots=1,
            nbytes=99,
            limit=None,
            written=5,
            written_bytes=50,
            removed=0,
            dropped=1,
            failed=2,
        )

    def _blocks(self, owner: CacheIdentity, tokens: tuple[int, ...]) -> tuple[Ref, ...]:
        ends = [*range(BLOCK_TOKENS, len(tokens), BLOCK_TOKENS), len(tokens)]
        starts = [0, *ends[:-1]]
        return tuple(
            Ref((owner, "block", tokens[:end]), start, end, BYTES * (end - start) + 1)
            for start, end in zip(starts, ends, strict=True)
        )

    def _end(self, owner: CacheIdentity, tokens: tuple[int, ...]) -> Ref:
        return Ref((owner, "snapshot", tokens), len(tokens) - 1, len(tokens), SNAPSHOT + 1)


@dataclass
class ScriptedReader:
    """``read`` reads the next chunk of whose turn it is; what it gives goes to the scheduler as a message."""

    readings: list[Reading] = field(default_factory=list)
    current: Reading | None = None
    """Its next chunk is in flight."""
    n_chunks: int = 0
    order: list[int] = field(default_factory=list)
    """Serials of the readings in the order of their chunks."""

    def begin(self, reading: Reading) -> None:
        self.readings.append(reading)

    def hurry(self, reading: Reading) -> None:
        reading.is_urgent = True

    def stop(self, reading: Reading) -> bool:
        reading.is_stopped = True
        if reading in self.readings and reading is not self.current:
            self.readings.remove(reading)
            return True
        return False

    def pick(self) -> bool:
        """Put a chunk in flight; whether there is one."""
        if self.current is None and self.readings:
            key = [(not each.is_stopped, not each.is_urgent, each.serial) for each in self.readings]
            self.current = self.readings[key.index(min(key))]
        return self.current is not None

    def read(self, error: str = "", seconds: float = 0.5) -> Arrived:
        assert self.pick()
        reading = self.current
        assert reading is not None
        index, part = reading.n_done, None
        if not reading.is_stopped and not error:
            part = part_of(reading.chunks[index])
            self.n_chunks += 1
            self.order.append(reading.serial)
        reading.n_done += 1
        arrived = Arrived(reading, seconds, part, index, error)
        self.current = None
        if arrived.is_last:
            self.readings.remove(reading)
        return arrived


def part_of(chunk: Sequence[Any]) -> Part:
    blocks = [ref for ref in chunk if ref.key[1] == "block"]
    end = chunk[-1].end
    start = blocks[0].start if blocks else chunk[0].start
    nbytes = sum(ref.nbytes - 1 for ref in chunk)
    return Part(start, end, len(chunk), nbytes, chunk, has_snapshot=chunk[-1].key[1] == "snapshot")


@dataclass
class Text:
    """A span that remembers which tokens it is the state of, with everything before them."""

    history: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return BYTES * (len(self.history) - self.start)

    def split(self, n: int) -> tuple[Text, Text]:
        cut = self.start + n
        return Text(self.history[:cut], self.start), Text(self.history, cut)


@dataclass
class Frozen:
    nbytes: int = SNAPSHOT


@dataclass
class Publisher:
    trie: PrefixTrie
    raises: bool = False

    def __call__(self, identity: CacheIdentity, tokens: Sequence[int], parts: Sequence[Part]) -> Node | None:
        if self.raises:
            raise ValueError("the state is of another model")
        end = parts[-1].end
        whole = tuple(tokens[:end])
        if parts[0].state[0].key[1] == "block" and self.trie.match(identity, whole).n < parts[0].start:
            return None
        self.trie.insert(
            identity,
            whole,
            lambda n: BYTES * n,
            lambda start, end: Text(whole[:end], start),
            Frozen() if parts[-1].has_snapshot else None,
        )
        match = self.trie.match(identity, whole)
        return match.nodes[-1] if match.n == end else None


class StillClock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Tiered(Harness):
    """A scheduler over a scripted disk. Evaluating a token takes ``token_seconds``, as far as it knows."""

    def __init__(
        self,
        policy: PolicyName = "wait",
        cuts: bool = True,
        limit: int | None = None,
        seconds: float = 10.0,
        token_seconds: float = 0.01,
        **changes: Any,
    ) -> None:
        self.shelf, self.reader, self.time = Shelf(), ScriptedReader(), StillClock()
        self.policy = PrefetchPolicy(policy, seconds)
        tier = self.make_tier(cuts, limit)
        fields = {"n_ctx_slot": 4096, "n_ctx": 8192, **changes}
        super().__init__(AnyCut() if cuts else NoCut(), self.trie, self.time, tier, **fields)
        self.scheduler.pace.seconds_per_token = token_seconds

    def make_tier(self, cuts: bool, limit: int | None) -> Tier:
        """On a trie that is empty."""
        self.trie = PrefixTrie(limit)
        self.publisher = Publisher(self.trie)
        return Tier(self.shelf, self.reader, self.publisher, self.policy, self.trie, cuts)

    @property
    def restores(self) -> Any:
        return self.scheduler.restores

    @property
    def books(self) -> Any:
        return self.scheduler.restores.books

    def store(self, tokens: Sequence[int], identity: CacheIdentity = BASE_IDENTITY) -> None:
        self.shelf.stored.append((identity, tuple(tokens)))

    def ask(self, task_id: int, tokens: Sequence[int], **fields: Any) -> None:
        self.scripts |= {child: [] for child, _ in fields.get("children", ())}
        self.submit(task_id, tokens=tuple(tokens), **{"n_predict": 2, **fields})

    def step(self) -> Plan:
        plan = super().step()
        for move in plan.moves:
            if isinstance(move, Load):  # as the mover does
                self.trie.touch(move.node)
                self.trie.unpin(move.node)
        self.check()
        return plan

    def read(self, n: int = 1, **fields: Any) -> None:
        """The next ``n`` chunks arrive."""
        for _ in range(n):
            self.scheduler.arrived(self.reader.read(**fields))
            self.check()

    def check(self) -> None:
        """What holds at any time."""
        scheduler = self.scheduler
        self.trie.check()
        waiting = [task.id for task in scheduler._placement.waiting]
        scheduler.restores.check([*waiting, *scheduler.running()])

    @property
    def is_resting(self) -> bool:
        """The engine would sleep until a message comes."""
        return self.pending is None and all(slot.is_idle for slot in self.scheduler.slots)

    def settle(self) -> None:
        """Steps until the engine would sleep."""
        for _ in range(1000):
            self.step()
            if self.is_resting:
                self.scheduler.check()
                return
        raise AssertionError("never came to rest")

    def assert_nothing_is_held(self) -> None:
        """Nothing is pinned, reserved or in flight, and what was read is a hit or wasted."""
        self.settle()
        assert self.restores._restores == {} and self.restores._rooms == {}
        assert self.trie.reserved == 0 and not any(node.pins for node in self.trie.nodes())
        assert self.reader.readings == []
        assert self.books.read.files == self.books.hit.files + self.books.wasted.files

    def past(self, task_id: int) -> tuple[int, int | None]:
        """(tokens reused, those from disk) of a task that has started."""
        (started,) = self.of(task_id, Started)
        return started.n_past, started.n_disk

    def has_ended(self, task_id: int) -> bool:
        return bool(self.of(task_id, Finished) or self.of(task_id, Failed))
