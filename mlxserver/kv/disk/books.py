"""What the disk tier's threads share: the index, what is queued, and the counts. All of it under one lock."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mlxserver.kv.disk.entry import DiskError, Entry, Key, Kind, Name
from mlxserver.kv.disk.index import Index
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.state_file import StateFileError

log = logging.getLogger("mlxserver.srv")


@dataclass(frozen=True, slots=True)
class DiskEvent:
    """A file of this model's came or went: ``n_tokens`` tokens behind ``start`` others."""

    is_stored: bool
    kind: Kind
    hash: bytes
    parent: bytes
    start: int
    n_tokens: int
    identity: CacheIdentity


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Files and bytes of files. ``blocks``, ``snapshots`` and ``nbytes`` are held now, those of other models
    too; the other counts are since the start."""

    is_ready: bool
    """The files that earlier servers left are known."""
    is_paused: bool
    """Writing has failed and is tried again later."""
    blocks: int
    snapshots: int
    nbytes: int
    limit: int | None
    queued: int
    queued_bytes: int
    """Of arrays that wait to be written."""
    written: int
    written_bytes: int
    read: int
    read_bytes: int
    removed: int
    removed_bytes: int
    dropped: int
    """Not written: the queue or the disk's share was full, or writing was paused."""
    failed: int
    """Reads and writes that an error ended."""


@dataclass(slots=True, eq=False)
class Job:
    """State to be written: the files ``names`` of the tokens from ``start`` on, in order."""

    names: list[Name]
    start: int
    span: KVSpan
    snapshot: KVSnapshot | None
    nbytes: int


@dataclass(slots=True, eq=False)
class Books:
    index: Index
    space: str
    """Folder of this model's files."""
    observer: Callable[[DiskEvent], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(init=False)
    jobs: deque[Job] = field(default_factory=deque)
    discarded: deque[Entry] = field(default_factory=deque)
    """Out of the index; their files are still there."""
    pending: set[Key] = field(default_factory=set)
    """Files that are queued or being written."""
    queued_bytes: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    is_ready: bool = False
    is_closed: bool = False
    paused_until: float = 0.0
    """On the monotonic clock."""
    _warned: set[tuple[str, object]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    def check(self) -> None:
        """Raise AssertionError where the books do not add up; under the lock."""
        self.index.check()
        assert self.queued_bytes == sum(job.nbytes for job in self.jobs), "queued bytes are miscounted"
        assert self.pending == {name.key for job in self.jobs for name in job.names}, "a file is pending"

    def emit(self, is_stored: bool, names: Iterable[Name]) -> None:
        """Tell the observer; not to be called under the lock."""
        if self.observer is None:
            return
        for name in names:
            if name.space == self.space:
                where = name.hash, name.parent, name.start, name.n
                try:
                    self.observer(DiskEvent(is_stored, name.kind, *where, name.identity))
                except Exception as error:  # the observer's fault, which must not cost the files behind it
                    self.failed("tell what it holds", error)

    def failed(self, what: str, error: Exception) -> None:
        """Count it, and warn where it is the first of its kind."""
        kind = what, getattr(error, "errno", None) or str(error)
        with self.lock:
            self.counts["failed"] += 1
            is_new = kind not in self._warned
            self._warned.add(kind)
        if is_new:
            ours = None if isinstance(error, (OSError, DiskError, StateFileError)) else error
            log.warning("the disk cache cannot %s: %s (told once)", what, error, exc_info=ours)
