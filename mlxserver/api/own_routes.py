"""Routes that llama-server does not have."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mlxserver.api import kv_events, lora
from mlxserver.api.json_response import json_response
from mlxserver.api.openapi import description
from mlxserver.api.routes import ROUTES, Route
from mlxserver.api.state import ServerState


async def openapi(request: Request, state: ServerState) -> Response:
    """The OpenAPI description of all routes."""
    return json_response(description((*ROUTES, *OWN_ROUTES), state))


async def docs(request: Request, state: ServerState) -> Response:
    """A page that shows that description; it asks for a key where one is needed."""
    page = resources.files("mlxserver.api").joinpath("docs.html")
    return HTMLResponse(page.read_text(encoding="utf-8"))


OWN_ROUTES = (
    Route("GET", ("/openapi.json",), openapi, note="404 in llama-server"),
    Route("GET", ("/docs",), docs, note="404 in llama-server; a static page, so without a key"),
    Route(
        "GET",
        ("/kv-events",),
        kv_events.kv_events,
        note="404 in llama-server; needs --kv-events",
        gives="kv_events",
    ),
    Route(
        "POST",
        ("/lora-adapters/load",),
        lora.load_lora_adapter,
        note="404 in llama-server; needs --lora-dir",
        takes="lora_load",
        gives="lora_loaded",
    ),
    Route(
        "POST",
        ("/lora-adapters/unload",),
        lora.unload_lora_adapter,
        note="404 in llama-server",
        takes="lora_unload",
        gives="success",
    ),
)
