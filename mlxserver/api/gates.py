"""What stands before every handler besides keys and origins: readiness, size and time limits."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxserver.api.errors import FAILED, LOADING, ApiError, Busy
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState

MAX_BODY = 100 * 1024 * 1024
MAX_HELD = 10 * MAX_BODY
BODY_SECONDS, BODY_RATE = 60.0, 4096
LONGEST_LENGTH = 18
"""Digits of a body's length; more are none."""
COMPRESSIONS = frozenset({"gzip", "deflate", "br", "zstd"})
"""Encodings of a body that are refused; unknown ones are taken for none, as llama-server does."""

_LOADING = json_response(LOADING, 503)
_FAILED = json_response(FAILED, 503)


class BodyError(ApiError):
    """A body that is not read to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__("invalid_request_error", message)
        self._status = status

    @property
    def status(self) -> int:
        return self._status


class Readiness:
    """Answers 503 until the model is loaded, and after the engine failed."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = self._state.is_ready or scope["path"] == "/"
        app = _FAILED if self._state.failed else self._app if is_open else _LOADING
        await app(scope, receive, send)


class Limits:
    """Bounds requests' bodies: each one's size and time, and the sizes of all that are held together."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds if seconds > 0 else None
        self._held = Held()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive, self._seconds, Headers(scope=scope), self._held)
        try:
            await self._app(scope, body, send)
        finally:
            self._held.n_bytes -= body.size


@dataclass(slots=True)
class Held:
    """Bytes of the bodies of all requests that are not answered yet."""

    n_bytes: int = 0


class _Body:
    """Raises ``BodyError`` where the body is too large, too slow or compressed.

    One read may take ``seconds``; the whole may take BODY_SECONDS, and a second more for BODY_RATE bytes.
    """

    def __init__(self, receive: Receive, seconds: float | None, headers: Headers, held: Held) -> None:
        self._receive = receive
        self._seconds = seconds
        self.size = 0
        length = headers.get("content-length", "")
        self._announced = int(length) if length.isdecimal() and len(length) <= LONGEST_LENGTH else 0
        encodings = headers.get("content-encoding", "").lower().replace(" ", "").split(",")
        self._is_compressed = not COMPRESSIONS.isdisjoint(encodings)
        self._is_read = False
        self._held = held
        self._began = 0.0

    async def __call__(self) -> Message:
        if self._is_read:
            return await self._receive()
        if self._is_compressed:
            raise BodyError(415, "Unsupported Media Type")
        self._check_size(max(self._announced, self.size))
        try:
            async with asyncio.timeout(self._time_left()):
                message = await self._receive()
        except TimeoutError:
            raise BodyError(408, "Request Timeout") from None
        n_bytes = len(message.get("body", b""))
        self.size += n_bytes
        self._held.n_bytes += n_bytes
        self._is_read = not message.get("more_body", False)
        self._check_size(self.size)
        return message

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY:
            raise BodyError(413, "Payload Too Large")
        if self._held.n_bytes - self.size + size > MAX_HELD:
            raise Busy("The requests at work are too large together")

    def _time_left(self) -> float | None:
        if self._seconds is None:
            return None
        now = time.monotonic()
        self._began = self._began or now
        return min(self._seconds, self._began + BODY_SECONDS + self.size / BODY_RATE - now)
