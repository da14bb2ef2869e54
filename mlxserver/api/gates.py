"""What stands before every handler besides keys and origins: readiness, size and time limits."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxserver.api.errors import FAILED, LOADING, ApiError
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState

MAX_BODY = 100 * 1024 * 1024
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
    """Bounds a request's body, and the seconds that one read or write may take."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds if seconds > 0 else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._seconds):
                await send(message)

        await self._app(scope, _Body(receive, self._seconds, Headers(scope=scope)), send_in_time)


class _Body:
    """Raises ``BodyError`` where the body is too large, too slow or compressed."""

    def __init__(self, receive: Receive, seconds: float | None, headers: Headers) -> None:
        self._receive = receive
        self._seconds = seconds
        self._size = 0
        length = headers.get("content-length", "")
        self._announced = int(length) if length.isdecimal() else 0
        encodings = headers.get("content-encoding", "").lower().replace(" ", "").split(",")
        self._is_compressed = not COMPRESSIONS.isdisjoint(encodings)
        self._is_read = False

    async def __call__(self) -> Message:
        if self._is_read:
            return await self._receive()
        if self._is_compressed:
            raise BodyError(415, "Unsupported Media Type")
        if max(self._announced, self._size) > MAX_BODY:
            raise BodyError(413, "Payload Too Large")
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise BodyError(408, "Request Timeout") from None
        self._size += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        if self._size > MAX_BODY:
            raise BodyError(413, "Payload Too Large")
        return message
