"""The OpenAPI description of the routes, made of their table and of the manifest of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mlxserver.api.completion_schema import field_values
from mlxserver.api.field_rows import Place, Schema, rows_of
from mlxserver.api.json_schemas import EXTENDS, component, components, object_schema, reference
from mlxserver.api.response_ids import BUILD_INFO
from mlxserver.api.routes import Route
from mlxserver.api.state import ServerState

KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
}
PARAMETERS: tuple[Place, ...] = ("path", "query", "header")


def description(routes: Iterable[Route], state: ServerState) -> dict[str, Any]:
    """The document, with the defaults that this server's command line and model give."""
    has_keys = bool(state.options.api_key)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for path in route.paths:
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": state.model_name, "version": BUILD_INFO},
        "servers": [{"url": state.options.api_prefix or "/"}],
        "security": [{name: []} for name in KEY_SCHEMES] if has_keys else [],
        "paths": paths,
        "components": {"schemas": components(_defaults(state)), "securitySchemes": KEY_SCHEMES},
    }


def _defaults(state: ServerState) -> dict[str, Any]:
    values = field_values(state.defaults)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _operation(route: Route, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{path}").rstrip("_"),
        "tags": [route.handler.__module__.rsplit(".", 1)[1]],
        "summary": (route.handler.__doc__ or "").partition("\n")[0],
        "parameters": _parameters(route.takes),
        "responses": {**_answers(route), "default": _content("An error", "application/json", "error")},
    }
    if any(rows_of(route.takes, "body")):
        body = _content("", "application/json", component(route.takes, "body"))
        found["requestBody"] = {"required": True, "content": body["content"]}
    if not route.needs_key:
        found["security"] = []
    if route.state != "honoured" or route.note:
        found["x-mlxserver"] = {"state": route.state, "note": route.note}
    return found


def _parameters(api: str) -> list[Schema]:
    inherited = _parameters(EXTENDS[api]) if api in EXTENDS else []
    return inherited + [
        {
            "name": row.names[0],
            "in": place,
            "required": row.required,
            "schema": object_schema([replace(row, names=("",), required=False)]),
        }
        for place in PARAMETERS
        for row in rows_of(api, place)
    ]


def _answers(route: Route) -> dict[str, Any]:
    """A plain answer, and a stream's events where the route has one."""
    api = route.gives or route.takes
    forms: tuple[tuple[str, Place], ...] = (("application/json", "response"), ("text/event-stream", "event"))
    content = {
        media_type: {"schema": reference(component(api, place))}
        for media_type, place in forms
        if any(rows_of(api, place))
    }
    return {"200" if content else "2XX": {"description": "The answer", "content": content}}


def _content(text: str, media_type: str, name: str) -> dict[str, Any]:
    return {"description": text, "content": {media_type: {"schema": reference(name)}}}
