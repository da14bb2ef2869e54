"""Answers of routes that llama-server has and this server, or this model, does not serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import ApiError, not_supported
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState

Handler = Callable[[Request, ServerState], Awaitable[Response]]


def without(text: str) -> Handler:
    """Always refuses, in the words that llama-server has for a model or start without the feature."""

    async def refuse(request: Request, state: ServerState) -> Response:
        raise not_supported(text)

    return refuse


async def disabled_feature(request: Request, state: ServerState) -> Response:
    """Tools and the proxy are off unless they are asked for at the start."""
    return json_response({"error": {"message": "this feature is disabled", "type": "feature_disabled"}}, 403)


async def absent(request: Request, state: ServerState) -> Response:
    """A route that llama-server has in another mode only."""
    raise ApiError("not_found_error", "File Not Found")
