"""Server-Sent Events in llama-server's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.state import ServerState
from mlxserver.api.tenant import tenant_of

# otherwise a signal cuts streams off; here they end as every other answer does when the server stops
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]


def event_stream(request: Request, events: AsyncGenerator[bytes], ping_interval: int) -> Response:
    """``events`` are sent as they are. A client that goes away closes them.

    With an ``X-Conversation-Id`` they go on without it, and can be read again (``/v1/stream``).
    ``ping_interval``: seconds of silence after which a comment is sent; none for 0 and below.
    """
    conversation_id = request.headers.get("x-conversation-id")
    if not conversation_id:
        return raw_stream(events, ping_interval)
    state: ServerState = request.scope["server_state"]
    return raw_stream(state.streams.open(tenant_of(request), conversation_id, events).read(0), ping_interval)


def raw_stream(data: AsyncGenerator[bytes], ping_interval: int = 0) -> Response:
    """``data`` holds events as they are sent."""
    return EventSourceResponse(
        data,
        ping=max(ping_interval, 0),
        ping_message_factory=lambda: ServerSentEvent(comment="", sep="\n"),
        sep="\n",
        headers={"X-Accel-Buffering": "no"},
    )
