"""Server-Sent Events in llama-server's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response


def event_stream(request: Request, events: AsyncGenerator[str], ping_interval: int) -> Response:
    """Each string is the data of one event. A client that goes away closes ``events``.

    ``ping_interval``: seconds of silence after which a comment is sent; none for 0 and below.
    """
    return EventSourceResponse(
        events,
        ping=max(ping_interval, 0),
        ping_message_factory=lambda: ServerSentEvent(comment="", sep="\n"),
        sep="\n",
        headers={"X-Accel-Buffering": "no"},
    )
