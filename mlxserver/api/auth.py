"""API keys."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxserver.api.errors import INVALID_KEY
from mlxserver.api.json_response import json_response
from mlxserver.api.routes import PUBLIC_PATHS
from mlxserver.telemetry.log import srv

log = srv("operator()")

_REFUSAL = json_response(INVALID_KEY, 401)


class ApiKeys:
    """Lets through who shows one of the keys. Public paths are open under their bare names only.

    ``scope["tenant"]`` then tells keys apart without telling them.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _shown_key(Headers(scope=scope))
        if scope["path"] in PUBLIC_PATHS or self._accepts(key):
            scope["tenant"] = hashlib.sha256(key.encode("latin-1")).hexdigest()
            await self._app(scope, receive, send)
            return
        log.warning("unauthorized: Invalid API Key")
        await _REFUSAL(scope, receive, send)

    def _accepts(self, shown: str) -> bool:
        """Compares with every key in full, so that the time tells nothing."""
        given = shown.encode("latin-1")
        return sum(hmac.compare_digest(given, key) for key in self._keys) > 0


def _shown_key(headers: Headers) -> str:
    key = headers.get("authorization", "") or headers.get("x-api-key", "")
    return key.removeprefix("Bearer ")
