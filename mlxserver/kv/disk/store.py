"""The disk tier: state of prompts in files that outlive the process. See docs/disk.md.

The engine thread asks what is there and hands over what is new, and never waits for the disk; one thread
writes; ``read`` is for threads that may wait.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxserver.kv.block_hash import BLOCK_TOKENS, root_hash
from mlxserver.kv.disk.books import Books, DiskEvent, DiskStats, Job
from mlxserver.kv.disk.entry import DiskError, Entry, Key, Kind, Name, name_of, space_folder
from mlxserver.kv.disk.folder import Folder
from mlxserver.kv.disk.index import DiskMatch, DiskRef, Index, Run
from mlxserver.kv.disk.writer import Writer
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.state_file import StateFileError, Tensor, arrays_of, read_state
from mlxserver.kv.state_names import span_of, states_of, unstacked

QUEUE_LIMIT = 512 * 1024 * 1024
RETRY_AFTER = 10.0

_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors that say nothing about the file."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Of a block ``span``, the tokens ``[start, end)``; of a snapshot ``states``, the ``cache.state`` of each
    layer that cannot be cut, after ``end`` tokens. The arrays are evaluated."""

    start: int
    end: int
    span: KVSpan
    states: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Missing:
    """What of a sequence is neither stored nor queued: the blocks from ``start`` on, and the snapshot."""

    start: int
    n: int
    """Tokens of the sequence."""
    snapshot: bool

    def __bool__(self) -> bool:
        return self.start < self.n or self.snapshot


class DiskStore:
    """``limit`` bounds the bytes of all files in ``folder`` (None: no bound), ``queue_limit`` those of arrays
    that wait to be written. ``space`` names model and KV types. ``observer`` is called in the writer's
    thread. After an error of the disk's nothing is written for ``retry_after``
    seconds.

    Raises DiskError where the folder cannot be used, or where another server uses it. All methods may be
    called from any thread.
    """

    def __init__(
        self,
        folder: Path,
        limit: int | None,
        space: str,
        *,
        queue_limit: int = QUEUE_LIMIT,
        observer: Callable[[DiskEvent], None] | None = None,
        retry_after: float = RETRY_AFTER,
        open_folder: Callable[[Path], Folder] = Folder,
    ) -> None:
        self._folder = open_folder(folder)
        self._space_name = space
        self._space = space_folder(space)
        self._root = root_hash(space)
        self._queue_limit = queue_limit
        self._books = Books(Index(limit), self._space, observer)
        self._writer = Writer(self._books, self._folder, space, retry_after)

    def find(self, identity: CacheIdentity, tokens: Sequence[int], cuts: bool) -> DiskMatch:
        """The longest stored prefix of ``tokens`` without a gap. No I/O; changes nothing.

        ``cuts``: state can be cut anywhere; otherwise only prefixes that end at a snapshot count.
        """
        run = Run(self._root, identity, tokens)
        with self._books.lock:
            return self._books.index.find(run, cuts) if not self._books.is_closed else DiskMatch()

    def missing(self, identity: CacheIdentity, tokens: Sequence[int], has_snapshot: bool = False) -> Missing:
        """What ``put`` would take of the state of ``tokens``; what is there counts as used now. No I/O.

        Nothing is missing while writing is paused.
        """
        run = Run(self._root, identity, tokens)
        with self._books.lock:
            if not self._accepts():
                return Missing(run.n, run.n, False)
            return self._missing(run, has_snapshot)

    def put(
        self,
        identity: CacheIdentity,
        tokens: Sequence[int],
        start: int,
        span: KVSpan,
        snapshot: KVSnapshot | None = None,
    ) -> bool:
        """Queue the state of the tokens ``[start, len(tokens))``, and the snapshot after the last of them.

        The arrays are evaluated and never change. What is there or queued already is not written again, and
        what has no stored block before it is dropped, so ``start`` is at most ``missing(...).start``. False
        where all of it was dropped, since the queue is full, writing is paused or the store is closed. State
        larger than the queue comes in pieces: more of ``tokens`` each time, cut at multiples of BLOCK_TOKENS.
        """
        if span.layers and span.n != len(tokens) - start:
            raise ValueError(f"{span.n} tokens of state for the tokens [{start}, {len(tokens)})")
        run = Run(self._root, identity, tokens)
        names = self._names(run, start, span, snapshot)
        nbytes = span.nbytes + (snapshot.nbytes if snapshot else 0)
        books = self._books
        with books.lock:
            names = [name for name in names if not self._has(name)]
            if not names:
                return True
            if not self._accepts() or books.queued_bytes + nbytes > self._queue_limit:
                books.counts["dropped"] += len(names)
                return False
            books.jobs.append(Job(names, start, span, snapshot, nbytes))
            books.queued_bytes += nbytes
            books.pending.update(name.key for name in names)
            books.changed.notify_all()
        return True

    def read(self, ref: DiskRef) -> StoredBlock:
        """The state in a file; waits for the disk. A thread that calls it ends with ``mx.clear_streams``.

        Raises DiskError where it is gone or damaged. A damaged one is dropped with all that hangs on it.
        """
        entry = self._held(ref)
        try:
            with self._folder.open(entry.name) as file:
                header, tensors = read_state(file)
            stored = _stored(header, tensors, entry.name, ref)
        except (OSError, StateFileError, DiskError) as error:
            if getattr(error, "errno", None) not in _PASSING:
                self._lose(entry)
            self._books.failed("read", error)
            raise DiskError(f"a file of the disk cache cannot be used: {error}") from error
        finally:
            with self._books.lock:
                self._books.index.release(entry)
        with self._books.lock:
            self._books.counts["read"] += 1
            self._books.counts["read_bytes"] += entry.nbytes
        return stored

    def stats(self) -> DiskStats:
        books = self._books
        with books.lock:
            counts, index = books.counts, books.index
            return DiskStats(
                is_ready=books.is_ready,
                is_paused=time.monotonic() < books.paused_until,
                blocks=len(index.entries) - index.n_snapshots,
                snapshots=index.n_snapshots,
                nbytes=index.nbytes + index.stuck,
                limit=index.limit,
                queued=len(books.pending),
                queued_bytes=books.queued_bytes,
                written=counts["written"],
                written_bytes=counts["written_bytes"],
                read=counts["read"],
                read_bytes=counts["read_bytes"],
                removed=counts["removed"],
                removed_bytes=counts["removed_bytes"],
                dropped=counts["dropped"],
                failed=counts["failed"],
            )

    def flush(self, timeout: float) -> bool:
        """Wait until all that is queued is written and what was there at the start is known; False after
        ``timeout`` seconds."""
        books = self._books
        with books.lock:
            return books.changed.wait_for(
                lambda: books.is_ready and not books.jobs and not books.discarded, timeout
            )

    def close(self, timeout: float = 10.0) -> bool:
        """Finish the queue for at most so many seconds and let others use the folder.

        False where the disk does not even finish the file in hand; that happens in the background then.
        """
        with self._books.lock:
            self._books.is_closed = True
            self._books.changed.notify_all()
        return self._writer.end(timeout)

    def check(self) -> None:
        """Raise AssertionError where the books do not add up. Looks at every file's entry."""
        with self._books.lock:
            self._books.check()

    # ------------------------------------------------------------- inside

    def _accepts(self) -> bool:
        return not self._books.is_closed and time.monotonic() >= self._books.paused_until

    def _has(self, name: Name) -> bool:
        return name.key in self._books.index.entries or name.key in self._books.pending

    def _missing(self, run: Run, has_snapshot: bool) -> Missing:
        index = self._books.index
        if has_snapshot and run.hashes and self._is_there((Kind.SNAPSHOT, run.hashes[-1])):
            return Missing(run.n, run.n, False)  # what it hangs on is there too
        start = 0
        for i, each in enumerate(run.hashes):
            if not self._is_there((Kind.BLOCK, each)):
                longer = None if has_snapshot else index.longer(run.parent(i), run.identity, run.tokens(i))
                if longer is None:
                    break
                index.touch(longer)
            start = run.end(i)
        return Missing(start, run.n, has_snapshot)

    def _is_there(self, key: Key) -> bool:
        """Stored, which counts as used now, or queued."""
        entry = self._books.index.entries.get(key)
        if entry is not None:
            self._books.index.touch(entry)
        return entry is not None or key in self._books.pending

    def _names(self, run: Run, start: int, span: KVSpan, snapshot: KVSnapshot | None) -> list[Name]:
        """The files that the state goes to, in order."""
        names = []
        for i, each in enumerate(run.hashes):
            at = i * BLOCK_TOKENS
            is_last = i == len(run.hashes) - 1
            parts = run.parent(i), run.identity, run.tokens(i), at
            if span.layers and at >= start:
                names.append(Name(Kind.BLOCK, self._space, each, *parts))
            if snapshot is not None and is_last:
                names.append(Name(Kind.SNAPSHOT, self._space, each, *parts, bare=not span.layers))
        return names

    def _held(self, ref: DiskRef) -> Entry:
        with self._books.lock:
            entry = self._books.index.entries.get(ref.key)
            if entry is None or self._books.is_closed:
                raise DiskError("a file of the disk cache is gone")
            self._books.index.hold(entry)
            self._books.index.touch(entry)
            return entry

    def _lose(self, entry: Entry) -> None:
        """Drop an entry that cannot be used; the writer removes its file and those of what hangs on it."""
        books = self._books
        with books.lock:
            if books.index.entries.get(entry.name.key) is entry:
                books.discarded.extend(books.index.remove(entry))
                books.changed.notify_all()


def _stored(header: Any, tensors: dict[str, Tensor], name: Name, ref: DiskRef) -> StoredBlock:
    """Raises DiskError where it is not what the name says."""
    if name_of(header) != name:
        raise DiskError("the file is another's")
    if name.kind is Kind.BLOCK:
        n = ref.end - ref.start
        shapes = [tensor.values.shape for tensor in tensors.values()]
        if not all(len(shape) == 4 and shape[2] == name.n for shape in shapes):
            raise DiskError("the file's arrays are not those of its tokens")
        try:
            layers = unstacked({key: tensor.columns(0, n) for key, tensor in tensors.items()})
        except ValueError as error:
            raise DiskError("the file's arrays are not those of a span") from error
        return StoredBlock(ref.start, ref.end, span_of(arrays_of(layers)))
    try:
        return StoredBlock(ref.end, ref.end, KVSpan(()), states_of(header["states"], arrays_of(tensors)))
    except (KeyError, TypeError) as error:
        raise DiskError("the file's states are damaged") from error
