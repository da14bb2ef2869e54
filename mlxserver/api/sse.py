"""Server-Sent Events in llama-server's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlxserver.api.disconnect import disconnected, until_one_ends
from mlxserver.api.state import ServerState
from mlxserver.api.tenant import tenant_of

PING = b":\n\n"
"""A comment, which clients skip."""


def event_stream(request: Request, events: AsyncGenerator[bytes], ping_interval: int) -> Response:
    """``events`` are sent as they are. A client that goes away closes them.

    With an ``X-Conversation-Id`` they go on without it, and can be read again (``/v1/stream``).
    ``ping_interval``: seconds of silence after which a comment is sent; none for 0 and below.
    """
    conversation_id = request.headers.get("x-conversation-id")
    if not conversation_id:
        return EventStream(events, ping_interval)
    state: ServerState = request.scope["server_state"]
    stream = state.streams.open(tenant_of(request), conversation_id, events)
    return EventStream(stream.read(0), ping_interval)


class EventStream(Response):
    """A response of events as they are sent: each item of ``data`` is one write, of one event or several.

    sse-starlette's makes a cancel scope for every write, pings at fixed times whether or not anything was
    sent, and polls for the server's end; a stream here goes on then, as every other answer does.
    """

    media_type = "text/event-stream"

    def __init__(self, data: AsyncGenerator[bytes], ping_interval: float = 0) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(
            {"X-Accel-Buffering": "no", "Cache-Control": "no-store", "Connection": "keep-alive"}
        )
        self._data = data
        self._ping_interval = ping_interval
        self._sent_at = 0.0
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body"})
            return
        self._sent_at = asyncio.get_running_loop().time()
        tasks = [asyncio.create_task(self._send_all(send)), asyncio.create_task(disconnected(receive))]
        if self._ping_interval > 0:
            tasks.append(asyncio.create_task(self._ping(send)))
        await until_one_ends(*tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _send_all(self, send: Send) -> None:
        time = asyncio.get_running_loop().time
        async with aclosing(self._data):
            async for data in self._data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
                self._sent_at = time()
        self._is_over = True
        await send({"type": "http.response.body"})

    async def _ping(self, send: Send) -> None:
        """A comment whenever nothing was sent for the interval; never ends by itself."""
        time = asyncio.get_running_loop().time
        while True:
            silence = time() - self._sent_at
            if silence < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silence)
                continue
            if not self._is_over:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            self._sent_at = time()
