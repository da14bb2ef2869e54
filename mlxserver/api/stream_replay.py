"""Streams that outlive their connection: a request's ``X-Conversation-Id`` keeps its events for replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

MAX_BYTES = 4 * 1024 * 1024
"""What a stream keeps; older bytes go first."""
KEPT_SECONDS = 300
"""How long a stream stays after its end."""
MAX_ENDED_BYTES = 64 * 1024 * 1024
"""What all streams that have ended keep together, each of them with OVERHEAD."""
OVERHEAD = 4096

Name = tuple[str, str]
"""Owner and conversation."""


class ReplayStream:
    """The bytes of one event stream, written by its own task and read from any offset."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.started_at = int(time.time())
        self.completed_at = 0
        """Unix seconds; 0 while it runs."""
        self.n_dropped = 0
        self._kept = bytearray()
        self._changed = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        return self.completed_at != 0

    @property
    def n_kept(self) -> int:
        return len(self._kept)

    @property
    def total_bytes(self) -> int:
        """Bytes ever written."""
        return self.n_dropped + len(self._kept)

    def record(self, events: AsyncGenerator[bytes]) -> None:
        """Writes ``events`` until they end, whether or not anyone reads."""
        self._writer = asyncio.create_task(self._write(events))

    def append(self, data: bytes) -> None:
        self._kept += data
        excess = len(self._kept) - MAX_BYTES
        if excess > 0:
            del self._kept[:excess]
            self.n_dropped += excess
        self._wake_readers()

    def finish(self) -> None:
        if not self.is_done:
            self.completed_at = int(time.time())
            self._wake_readers()

    def stop(self) -> None:
        """Ends the writer, and with it whatever makes the events."""
        if self._writer is not None:
            self._writer.cancel()
        self.finish()

    async def read(self, offset: int) -> AsyncGenerator[bytes]:
        """What was written from ``offset`` on, then what still comes; ends early if it was dropped."""
        while offset >= self.n_dropped:
            changed = self._changed
            data = bytes(self._kept[offset - self.n_dropped :])
            if data:
                offset += len(data)
                yield data
            elif self.is_done:
                return
            else:
                await changed.wait()

    async def _write(self, events: AsyncGenerator[bytes]) -> None:
        try:
            async with aclosing(events):
                async for data in events:
                    self.append(data)
        finally:
            self.finish()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class StreamRegistry:
    """The streams of a server, one per owner and conversation.

    An owner is an API key (``scope["tenant"]``): nobody reads, stops or finds what another key began.
    """

    def __init__(self) -> None:
        self._streams: dict[Name, ReplayStream] = {}

    def open(self, owner: str, conversation_id: str, events: AsyncGenerator[bytes]) -> ReplayStream:
        """Starts recording ``events``; an earlier stream of the conversation is stopped."""
        self._forget_old()
        self.stop(owner, conversation_id)
        stream = self._streams[owner, conversation_id] = ReplayStream(conversation_id)
        stream.record(events)
        return stream

    def get(self, owner: str, conversation_id: str) -> ReplayStream | None:
        self._forget_old()
        return self._streams.get((owner, conversation_id))

    def stop(self, owner: str, conversation_id: str) -> None:
        """Stops and forgets the stream, if there is one."""
        stream = self._streams.pop((owner, conversation_id), None)
        if stream is not None:
            stream.stop()

    def matching(self, owner: str, names: Collection[str]) -> list[ReplayStream]:
        """By name the streams named so, or so with ``::`` and a model's name behind."""
        self._forget_old()
        by_name: dict[str, list[ReplayStream]] = {name: [] for name in names}
        lengths = {len(name) for name in by_name}
        for (of, name), stream in self._streams.items():
            if of == owner:
                for length in lengths:
                    if (length == len(name) or name.startswith("::", length)) and name[:length] in by_name:
                        by_name[name[:length]].append(stream)
        return [stream for streams in by_name.values() for stream in streams]

    def _forget_old(self) -> None:
        """Streams that have ended go when their time is over, and the oldest of them for want of room."""
        limit = time.time() - KEPT_SECONDS
        ended = sorted(
            ((stream.completed_at, name) for name, stream in self._streams.items() if stream.is_done),
        )
        n_bytes = sum(self._streams[name].n_kept + OVERHEAD for _, name in ended)
        for completed_at, name in ended:
            if completed_at > limit and n_bytes <= MAX_ENDED_BYTES:
                break
            n_bytes -= self._streams.pop(name).n_kept + OVERHEAD
