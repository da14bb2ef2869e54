"""One restore: what is read from disk for a task, and what of it is there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlxserver.engine.disk_tier import BlockRef, Disk, DiskMatch, Part
from mlxserver.engine.prefetch_policy import PrefetchPolicy
from mlxserver.engine.reader import Reading
from mlxserver.engine.task import Task
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.trie import Match, Node, PrefixTrie

Publish = Callable[[CacheIdentity, Sequence[int], Sequence[Part]], Node | None]
"""Puts parts that follow each other into the trie. Gives the node at their end; None where they did not get
in."""


class ReadsAhead(Protocol):
    """The reader's side that a restore uses; ``Reader``."""

    def begin(self, reading: Reading) -> None: ...

    def hurry(self, reading: Reading) -> None: ...

    def stop(self, reading: Reading) -> bool: ...


@dataclass(frozen=True, slots=True)
class Tier:
    """What restores are made of."""

    disk: Disk
    reader: ReadsAhead
    publish: Publish
    policy: PrefetchPolicy
    trie: PrefixTrie
    cuts: bool
    """State can be cut at any position."""


@dataclass(slots=True, eq=False)
class Restore:
    """Of one task, from when it enters the queue until it starts or goes away."""

    task: Task
    serial: int
    t_entered: float
    match: DiskMatch | None = None
    """None: nothing to read."""
    reading: Reading | None = None
    node: Node | None = None
    """The end of what is published for it, pinned."""
    published: list[Part] = field(default_factory=list)
    """Without their arrays."""
    arrived: list[Part] = field(default_factory=list)
    """Of no use before the snapshot at their end is there."""
    start: int = 0
    """Tokens that memory gave when the reading began."""
    n: int = 0
    """Tokens of the prompt that the trie gives it now."""
    t_ready: float | None = None
    n_ready: int = 0
    is_due: bool = False
    is_settled: bool = False
    """Nothing more will come."""


def missing_of(match: DiskMatch, found: Match) -> list[BlockRef]:
    """What of a stored prefix the trie does not have."""
    blocks = [ref for ref in match.blocks if ref.end > found.n]
    if match.snapshot is None:
        return blocks
    node = found.snapshot(match.n)
    return [] if node is not None and node.end == match.n else [*blocks, match.snapshot]


def affordable(refs: list[BlockRef], found: Match, limit: int | None, cuts: bool) -> list[BlockRef]:
    """Those that fit beside what the trie has of the prefix if all else goes; all or none without ``cuts``.

    Every restore is bounded by it, so that room for each can be made sooner or later.
    """
    if limit is None:
        return refs
    room = limit - sum(node.nbytes for node in found.nodes)
    sizes = itertools.accumulate(ref.nbytes for ref in refs)
    n = sum(size <= room for size in sizes)
    return refs[:n] if cuts or n == len(refs) else []
