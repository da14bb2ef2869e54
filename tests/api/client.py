"""A client of single routes, without the application's shell."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from mlxserver.api.errors import ApiError
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState

Handler = Callable[[Request, ServerState], Awaitable[Response]]


def client(state: ServerState, **handlers: Handler) -> TestClient:
    """``name=handler`` serves POST ``/name``."""

    def endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                return await handler(request, state)
            except ApiError as error:
                return json_response(error.body(), error.status)

        return serve

    routes = [Route(f"/{name}", endpoint(handler), methods=["POST"]) for name, handler in handlers.items()]
    return TestClient(Starlette(routes=routes))


def events(response: Any) -> list[Any]:
    """The data of every event: JSON, or text where it is none."""
    lines = [line for line in response.text.split("\n") if line.startswith("data: ")]
    return [_value(line.removeprefix("data: ")) for line in lines]


def _value(text: str) -> Any:
    return text if text == "[DONE]" else json.loads(text)
