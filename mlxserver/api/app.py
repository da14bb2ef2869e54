"""The ASGI application: gates in llama-server's order around the router."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from mlxserver.api.auth import ApiKeys
from mlxserver.api.cors import Cors
from mlxserver.api.gates import Limits, Readiness
from mlxserver.api.hosts import Hosts
from mlxserver.api.own_routes import OWN_ROUTES
from mlxserver.api.router import Router
from mlxserver.api.routes import ROUTES, Route
from mlxserver.api.state import ServerState
from mlxserver.api.vertex import with_vertex_routes
from mlxserver.options.vertex import VertexAi


def make_app(state: ServerState, vertex: VertexAi | None = None) -> ASGIApp:
    """Host, CORS header, OPTIONS, readiness, key, route.

    Raises ``OSError`` where ``--path`` is no folder, ``ValueError`` for CORS options that no header can hold,
    a prefix that is no path, and routes of ``vertex`` that are taken.
    """
    options = state.options
    if options.api_prefix and not (options.api_prefix.startswith("/") and options.api_prefix.isprintable()):
        raise ValueError(f"--api-prefix is no path that begins with '/': {options.api_prefix!r}")
    if options.metrics and state.metrics is None:
        from mlxserver.telemetry.metrics import Metrics

        state.metrics = Metrics()
    routes: tuple[Route, ...] = (*ROUTES, *OWN_ROUTES)
    if vertex:
        routes = with_vertex_routes(routes, vertex)
    app: ASGIApp = Router(state, routes, options.api_prefix, _files(options.path, options.api_prefix))
    app = Limits(app, options.timeout)
    if options.api_key:
        app = ApiKeys(app, options.api_key)
    return _HttpOnly(Hosts(Cors(Readiness(app, state), options), options.allowed_hosts))


class _HttpOnly:
    """Refuses what ASGI has besides: WebSockets, and the application's own start and end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        await self._app(scope, receive, send)


def _files(folder: str, prefix: str) -> ASGIApp | None:
    """The files of ``--path``, under the prefix."""
    if not folder:
        return None
    from starlette.routing import Mount
    from starlette.staticfiles import StaticFiles

    try:
        files = StaticFiles(directory=folder, html=True)
    except RuntimeError:
        raise NotADirectoryError(f"static assets path not found: {folder}") from None
    return Mount(prefix, files) if prefix else files
