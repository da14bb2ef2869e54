"""Reads stored state for requests that wait, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxserver.engine.disk_tier import BlockRef, Part

READER_THREAD = "disk-reader"
"""The thread's name."""

ReadChunk = Callable[[Sequence[BlockRef], Callable[[], bool]], Part | None]
"""The state of a chunk; None where the second argument, asked between two files, says that nobody wants it.
Whatever it raises ends the reading."""


@dataclass(slots=True, eq=False)
class Reading:
    """What one restore reads, chunk by chunk, in order. Belongs to the reader, but for ``chunks``."""

    chunks: tuple[tuple[BlockRef, ...], ...]
    serial: int
    is_urgent: bool = False
    is_stopped: bool = False
    n_done: int = 0


@dataclass(frozen=True, slots=True)
class Arrived:
    """The reader's message: a chunk of a reading, or with ``part`` None that it ended before its last one."""

    reading: Reading
    seconds: float
    part: Part | None = None
    index: int = -1
    error: str = ""

    @property
    def is_last(self) -> bool:
        return self.part is None or self.index == len(self.reading.chunks) - 1


class Reader:
    """Urgent readings go first, then the oldest; it may change between two chunks.

    ``post`` gets an ``Arrived`` for each chunk, on the reader's thread. ``at_end`` runs on it last.
    """

    def __init__(
        self, read_chunk: ReadChunk, post: Callable[[Arrived], None], at_end: Callable[[], None]
    ) -> None:
        self._read_chunk = read_chunk
        self._post = post
        self._at_end = at_end
        self._changed = threading.Condition()
        self._readings: list[Reading] = []
        self._current: Reading | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._main, name=READER_THREAD, daemon=True)
        self._thread.start()

    def begin(self, reading: Reading) -> None:
        with self._changed:
            self._readings.append(reading)
            self._changed.notify()

    def hurry(self, reading: Reading) -> None:
        """Somebody could go on if it were there."""
        with self._changed:
            reading.is_urgent = True

    def stop(self, reading: Reading) -> bool:
        """Read no more of it. True: nothing of it is in flight, and no message will follow.

        False: the last message is on its way, or comes once the file that is being read is through.
        """
        with self._changed:
            reading.is_stopped = True
            is_idle = reading in self._readings and reading is not self._current
            if is_idle:
                self._readings.remove(reading)
            return is_idle

    def close(self, timeout: float) -> None:
        """End the thread, after the file that it reads."""
        with self._changed:
            self._is_closed = True
            for reading in self._readings:
                reading.is_stopped = True
            self._changed.notify()
        self._thread.join(timeout)

    def _main(self) -> None:
        try:
            while (reading := self._next()) is not None:
                arrived = self._read(reading)
                self._post(arrived)
                self._done(arrived)
        finally:
            self._at_end()

    def _next(self) -> Reading | None:
        with self._changed:
            self._changed.wait_for(lambda: self._readings or self._is_closed)
            if self._is_closed:
                return None
            # what nobody wants any more only has to be told
            order = [(not each.is_stopped, not each.is_urgent, each.serial) for each in self._readings]
            self._current = self._readings[order.index(min(order))]
            return self._current

    def _read(self, reading: Reading) -> Arrived:
        begin = time.perf_counter()
        index, part, error = reading.n_done, None, ""
        try:
            if not reading.is_stopped:
                part = self._read_chunk(reading.chunks[index], lambda: reading.is_stopped)
        except Exception as failed:
            error = str(failed) or type(failed).__name__
        return Arrived(reading, time.perf_counter() - begin, part, index, error)

    def _done(self, arrived: Arrived) -> None:
        with self._changed:
            self._current = None
            arrived.reading.n_done += 1
            if arrived.is_last:
                self._readings.remove(arrived.reading)
