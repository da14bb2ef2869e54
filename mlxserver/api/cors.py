"""Cross-origin headers, as the ``--cors-`` options say."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Cors:
    """Names the allowed origin in every answer, and answers every OPTIONS itself.

    Raises ``ValueError`` for options that would break out of a header.
    """

    def __init__(self, app: ASGIApp, options: Any) -> None:
        self._app = app
        for value in (options.cors_origins, options.cors_methods, options.cors_headers):
            if not value.isprintable():
                raise ValueError(f"a CORS option is no header value: {value!r}")
        self._origins: str = options.cors_origins
        self._credentials: bool = options.cors_credentials
        self._preflight = [
            (b"content-type", b"text/html"),
            (b"content-length", b"0"),
            (b"access-control-allow-credentials", b"true" if self._credentials else b"false"),
            (b"access-control-allow-methods", options.cors_methods.encode()),
            (b"access-control-allow-headers", options.cors_headers.encode()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        added = self._allow_origin(Headers(scope=scope).get("origin", ""))

        async def send_with_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        if scope["method"] == "OPTIONS":
            start = {"type": "http.response.start", "status": 200, "headers": self._preflight}
            await send_with_origin(start)
            await send({"type": "http.response.body"})
            return
        await self._app(scope, receive, send_with_origin)

    def _allow_origin(self, origin: str) -> list[tuple[bytes, bytes]]:
        """The header: with credentials ``*`` stands for whoever asks; a list of origins goes out as it is."""
        if self._origins == "*" and self._credentials:
            allowed = origin
        elif self._origins == "localhost":
            if not is_local(origin):
                return []
            allowed = origin
        else:
            allowed = self._origins
        return [(b"access-control-allow-origin", allowed.encode("latin-1", "replace"))]


def is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in LOCAL_HOSTS
    except ValueError:
        return False
