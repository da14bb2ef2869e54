"""Streams that outlive their connection: a request's ``X-Conversation-Id`` keeps its events for replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

MAX_BYTES = 4 * 1024 * 1024
"""What a stream keeps; older bytes go first."""
KEPT_SECONDS = 300
"""How long a stream stays after its end."""


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
    """The streams of a server, one per conversation."""

    def __init__(self) -> None:
        self._streams: dict[str, ReplayStream] = {}

    def open(self, conversation_id: str, events: AsyncGenerator[bytes]) -> ReplayStream:
        """Starts recording ``events``; an earlier stream of the conversation is stopped."""
        self._forget_old()
        self.stop(conversation_id)
        stream = self._streams[conversation_id] = ReplayStream(conversation_id)
        stream.record(events)
        return stream

    def get(self, conversation_id: str) -> ReplayStream | None:
        self._forget_old()
        return self._streams.get(conversation_id)

    def stop(self, conversation_id: str) -> None:
        """Stops and forgets the stream, if there is one."""
        stream = self._streams.pop(conversation_id, None)
        if stream is not None:
            stream.stop()

    def matching(self, conversation_id: str) -> list[ReplayStream]:
        """The streams named so, or so with ``::`` and a model's name behind."""
        self._forget_old()
        return [
            stream
            for name, stream in self._streams.items()
            if name == conversation_id or name.startswith(f"{conversation_id}::")
        ]

    def _forget_old(self) -> None:
        limit = time.time() - KEPT_SECONDS
        for name, stream in list(self._streams.items()):
            if stream.is_done and stream.completed_at <= limit:
                del self._streams[name]
