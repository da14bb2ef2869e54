"""``--allowed-hosts``: by which names the server may be called.

A web page can point a name of its own at this machine (DNS rebinding); to a browser the server then belongs
to the page, and no rule about origins holds. The name in the Host header gives it away.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxserver.api.errors import middleware_body
from mlxserver.api.json_response import json_response

_REFUSAL = json_response(middleware_body("permission_error", "This host is not allowed"), 403)


class Hosts:
    """Refuses requests whose Host names none of ``allowed``; without any, every name is right."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower().strip("[]") for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_right = not self._allowed or name_in(Headers(scope=scope).get("host", "")) in self._allowed
        await (self._app if is_right else _REFUSAL)(scope, receive, send)


def name_in(host: str) -> str:
    """Without a port, and without the brackets of an IPv6 address."""
    name, end, _ = host.removeprefix("[").partition("]") if host.startswith("[") else host.partition(":")
    return name.lower().removesuffix(".")
