"""Vertex AI's predict route: several requests to this server's own routes in one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from mlxserver.api import operations
from mlxserver.api.errors import ApiError, invalid_request
from mlxserver.api.json_body import dump_json, parse_json
from mlxserver.api.json_response import json_response
from mlxserver.api.router import answer_of
from mlxserver.api.routes import Route
from mlxserver.api.state import ServerState
from mlxserver.options.vertex import VertexAi

MAX_INSTANCES = 128
FORMAT = "@requestFormat"


def with_vertex_routes(routes: tuple[Route, ...], vertex: VertexAi) -> tuple[Route, ...]:
    """``routes`` and those that Vertex AI asks for. Raises ``ValueError`` where they would hide one."""
    if any(vertex.predict in route.paths for route in routes):
        raise ValueError(f"AIP_PREDICT_ROUTE={vertex.predict} conflicts with an existing llama-server route")
    health = (Route("GET", (vertex.health,), operations.health),) if vertex.health else ()
    return (*health, *routes, Route("POST", (vertex.predict,), Predictions(routes), takes="vertex"))


class Predictions:
    """Answers every instance by the route that its ``@requestFormat`` names, all at once."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[str, Route] = {}
        for route in routes:
            for path in (path for path in route.paths if "{" not in path):
                self._routes.setdefault(path, route)
                self._routes.setdefault(format_of(path), route)

    async def __call__(self, request: Request, state: ServerState) -> Response:
        instances = _instances(await request.body())
        answers = (self._predict(instance, request, state) for instance in instances)
        return json_response({"predictions": await asyncio.gather(*answers)})

    async def _predict(self, instance: Any, request: Request, state: ServerState) -> Any:
        try:
            route, fields = self._find(instance)
        except ApiError as error:
            return error.body()
        inner = Request(request.scope, _body_then(dump_json(fields).encode(), request.receive))
        response = await answer_of(route.handler, inner, state)
        return _value(response)

    def _find(self, instance: Any) -> tuple[Route, dict[str, Any]]:
        if not isinstance(instance, dict):
            raise invalid_request("each instance must be a JSON object")
        name = instance.get(FORMAT)
        if not isinstance(name, str):
            raise invalid_request(f"each instance must include a string {FORMAT}")
        if name not in self._routes:
            raise invalid_request(f"no handler registered for {FORMAT}: {name}")
        fields = {key: value for key, value in instance.items() if key != FORMAT}
        return self._routes[name], fields | ({"stream": False} if "stream" in fields else {})


def format_of(path: str) -> str:
    """``/v1/chat/completions`` is ``chatCompletions``."""
    words = [word for word in re.split("[/_-]", path.removeprefix("/v1")) if word]
    return "".join([*words[:1], *(word[:1].upper() + word[1:] for word in words[1:])])


def _instances(body: bytes) -> list[Any]:
    try:
        data = parse_json(body)
    except ApiError as error:
        raise invalid_request(error.message) from None
    if not isinstance(data, dict):
        raise invalid_request("request body must be a JSON object")
    instances = data.get("instances")
    if not isinstance(instances, list):
        raise invalid_request("request body must include an array field named instances")
    if len(instances) > MAX_INSTANCES:
        raise invalid_request(f"instances array exceeds maximum size of {MAX_INSTANCES}")
    return instances


def _body_then(body: bytes, receive: Receive) -> Receive:
    """Gives ``body`` first, then what becomes of the connection."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message


def _value(response: Response) -> Any:
    body = getattr(response, "body", None)
    if body is None:
        return invalid_request("predict route does not support streaming responses").body()
    try:
        return parse_json(bytes(body)) if body else None
    except ApiError:
        return bytes(body).decode("utf-8", "replace")
