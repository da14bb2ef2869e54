"""The one thread that changes the disk tier's folder: finds what is there, writes, makes room, removes."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping

import mlx.core as mx

from mlxserver.kv.block_hash import BLOCK_TOKENS
from mlxserver.kv.disk.books import Books, Job
from mlxserver.kv.disk.entry import DiskError, Entry, Kind, Name, header_of, name_of
from mlxserver.kv.disk.folder import Folder, Found, Pieces, file_name
from mlxserver.kv.spans import KVSnapshot
from mlxserver.kv.state_file import StateFileError, Tensor, packed, read_header
from mlxserver.kv.state_names import snapshot_states, span_tensors, stacked

log = logging.getLogger("mlxserver.srv")

WAKES_AFTER = 60.0
"""Seconds after which an idle writer notes on the disk what was used."""

GRACE = 2.0
"""Seconds for the file in hand when the time for closing is over."""

BATCH = 100
"""Files that are taken into the index at a time; the engine thread may wait for the lock meanwhile."""


NAME_TAKEN = {errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ELOOP}
"""Something of somebody's lies where a file or a folder of ours belongs; all others can be written."""


class Writer:
    """``retry_after``: seconds that writing pauses after an error of the disk's."""

    def __init__(self, books: Books, folder: Folder, space: str, retry_after: float) -> None:
        self._books = books
        self._folder = folder
        self._space = space
        self._retry_after = retry_after
        self._is_hurried = False
        self._thread = threading.Thread(target=self._main, name="disk-writer", daemon=True)
        self._thread.start()

    def end(self, timeout: float) -> bool:
        """The queue is closed: finish it within so many seconds, or else only the file in hand.

        False where that file takes long too; the folder is still in use then.
        """
        self._thread.join(timeout)
        self._is_hurried = True
        self._thread.join(GRACE)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            self._safely(self._take_stock)
            with self._books.lock:
                self._books.is_ready = True
                self._books.changed.notify_all()
            while self._round():
                pass
            self._safely(self._note_uses)
        finally:
            mx.clear_streams()  # a stream that outlives its thread aborts the process at its end
            self._folder.close()

    def _round(self) -> bool:
        """One job; False at the end."""
        books = self._books
        with books.lock:
            woken = books.changed.wait_for(self._has_work, WAKES_AFTER)
            if books.is_closed and (self._is_hurried or not (books.jobs or books.discarded)):
                return False
            job = books.jobs[0] if books.jobs else None
        self._safely(self._remove_discarded)
        if job is not None:
            self._safely(lambda: self._write(job))
            self._done(job)
        elif not woken:
            self._safely(self._note_uses)
        return True

    def _has_work(self) -> bool:
        return bool(self._books.jobs or self._books.discarded or self._books.is_closed)

    def _safely(self, step: Callable[[], None]) -> None:
        """Errors of the disk's pause the writing; none ends the thread."""
        try:
            step()
        except (OSError, DiskError) as error:
            self._books.failed("write", error)
            if getattr(error, "errno", None) not in NAME_TAKEN:
                with self._books.lock:
                    self._books.paused_until = time.monotonic() + self._retry_after
        except Exception as error:  # a fault of ours; the next job may well go through
            self._books.failed("write", error)

    def _done(self, job: Job) -> None:
        books = self._books
        with books.lock:
            books.jobs.popleft()
            books.queued_bytes -= job.nbytes
            books.pending.difference_update(name.key for name in job.names)
            books.changed.notify_all()

    # --------------------------------------------------------- what is there

    def _take_stock(self) -> None:
        """Take in what earlier servers left; what is damaged, or hangs on what is gone, is removed."""
        known: list[tuple[Name, Found]] = []
        for found in self._folder.scan():
            if self._books.is_closed:
                return
            try:
                known.append((self._identified(found), found))
            except (StateFileError, DiskError):
                self._remove_found(found)
            except OSError as error:
                self._books.failed("read", error)
                if error.errno == errno.EIO:
                    self._remove_found(found)
                else:
                    self._count_stuck(found.nbytes)
        known.sort(key=lambda item: (item[0].start, item[0].kind is Kind.SNAPSHOT))  # parents come first
        for i in range(0, len(known), BATCH):
            with self._books.lock:
                index = self._books.index
                batch = [
                    (*item, index.add(item[0], item[1].nbytes, item[1].used)) for item in known[i : i + BATCH]
                ]
            for _, found, entry in batch:
                if entry is None:
                    self._remove_found(found)
            self._books.emit(True, (name for name, _, entry in batch if entry is not None))
        self._make_room(0)

    def _identified(self, found: Found) -> Name:
        """Whose state it is, by its header. Raises where it is damaged or not what its name says."""
        with self._folder.open_found(found) as file:
            header, data_size = read_header(file)
        name = name_of(header)
        if (name.space, file_name(name)) != (found.space, found.file_name) or header["data"] != data_size:
            raise DiskError("the file is damaged or another's")
        return name

    def _remove_found(self, found: Found) -> None:
        try:
            self._folder.remove_found(found)
        except OSError:
            self._count_stuck(found.nbytes)

    def _count_stuck(self, nbytes: int) -> None:
        """A file that is of no use stays and takes room."""
        with self._books.lock:
            self._books.index.stuck += nbytes

    # --------------------------------------------------------------- writing

    def _write(self, job: Job) -> None:
        if self._folder.is_lost:
            self._forget_all()
            self._folder.renew()
            self._take_stock()  # it may have been replaced by one with files
        tensors = span_tensors(job.span)
        for i, name in enumerate(job.names):
            if self._is_hurried or time.monotonic() < self._books.paused_until:
                self._drop(len(job.names) - i)
                return
            if not self._is_needed(name, job):
                continue
            try:
                is_written = self._write_one(name, job, tensors)
            except BaseException:
                self._drop(len(job.names) - i - 1)
                raise
            if not is_written:
                self._drop(len(job.names) - i)
                return

    def _is_needed(self, name: Name, job: Job) -> bool:
        """Not there, and not as a part of a longer block either."""
        index = self._books.index
        with self._books.lock:
            entry = index.entries.get(name.key)
            if entry is not None:
                index.touch(entry)
                return False
            is_tail = name.kind is Kind.BLOCK and name.n < BLOCK_TOKENS
            return not (
                is_tail and job.snapshot is None and index.longer(name.parent, name.identity, name.tokens)
            )

    def _write_one(self, name: Name, job: Job, tensors: Mapping[str, Tensor]) -> bool:
        """False where there is no room for it, or where what it hangs on is gone."""
        books = self._books
        with books.lock:
            above = books.index.entries.get(name.above) if name.above else None
            if name.above and above is None:
                return False
            if above is not None:
                books.index.hold(above)
        try:
            if name.kind is Kind.BLOCK:
                pieces = self._block(name, job.start, tensors)
            else:
                assert job.snapshot is not None
                pieces = self._snapshot(name, job.snapshot)
            nbytes = sum(len(piece) for piece in pieces)
            if not self._make_room(nbytes):
                return False
            self._folder.write(name, pieces)
        finally:
            if above is not None:
                with books.lock:
                    books.index.release(above)
        with books.lock:
            entry = books.index.add(name, nbytes)
            shorter = books.index.shorter(name) if entry and name.kind is Kind.BLOCK else []
            for each in shorter:
                books.index.remove(each)
            if entry is not None:
                books.counts["written"] += 1
                books.counts["written_bytes"] += nbytes
        if entry is None:  # a reader has found what it hangs on to be damaged
            self._folder.remove(name)
            return False
        books.emit(True, [name])
        for each in shorter:
            self._remove(each)
        return True

    def _block(self, name: Name, start: int, tensors: Mapping[str, Tensor]) -> Pieces:
        lo = name.start - start
        cut = {key: tensor.columns(lo, lo + name.n) for key, tensor in tensors.items()}
        return self._packed(name, stacked(cut), [])

    def _snapshot(self, name: Name, snapshot: KVSnapshot) -> Pieces:
        tensors: dict[str, Tensor] = {}
        states = snapshot_states(snapshot, tensors)
        return self._packed(name, tensors, states)

    def _packed(self, name: Name, tensors: Mapping[str, Tensor], states: list[object]) -> Pieces:
        data_size = sum(tensor.values.nbytes for tensor in tensors.values())
        return packed(header_of(name, self._space, data_size, states), tensors)

    def _drop(self, n: int) -> None:
        with self._books.lock:
            self._books.counts["dropped"] += n

    # -------------------------------------------------------------- removing

    def _make_room(self, nbytes: int) -> bool:
        """Remove what was used longest ago until so many bytes more fit; False where nothing may go."""
        books = self._books
        while True:
            with books.lock:
                if not books.index.exceeds(nbytes):
                    return True
                limit = books.index.limit
                entry = None if limit is not None and nbytes > limit else books.index.oldest()
                if entry is None:
                    return False
                books.index.remove(entry)
            try:
                self._remove(entry)
            except OSError:
                with books.lock:
                    if books.index.add(entry.name, entry.nbytes, entry.used) is None:
                        books.index.stuck += entry.nbytes
                raise

    def _remove_discarded(self) -> None:
        books = self._books
        while True:
            with books.lock:
                if not books.discarded:
                    return
                entry = books.discarded[0]
            try:
                self._remove(entry)
            except OSError as error:
                books.failed("remove", error)
                self._count_stuck(entry.nbytes)
            with books.lock:
                books.discarded.popleft()
                books.changed.notify_all()

    def _remove(self, entry: Entry) -> None:
        """Remove the file of an entry that is out of the index."""
        self._folder.remove(entry.name)
        with self._books.lock:
            self._books.counts["removed"] += 1
            self._books.counts["removed_bytes"] += entry.nbytes
        self._books.emit(False, [entry.name])

    def _forget_all(self) -> None:
        """The folder is gone with everything in it."""
        books = self._books
        with books.lock:
            tops = [entry for entry in books.index.entries.values() if entry.above is None]
            gone = [entry for top in tops for entry in books.index.remove(top)]
            books.index.stuck = 0
        log.warning("the folder of the disk cache was removed; it starts anew")
        books.emit(False, (entry.name for entry in gone))

    def _note_uses(self) -> None:
        with self._books.lock:
            touched = [(entry.name, entry.used) for entry in self._books.index.touched]
            self._books.index.touched.clear()
        for name, used in touched:
            with contextlib.suppress(OSError):
                self._folder.mark_used(name, used)
