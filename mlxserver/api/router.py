"""Finds the handler of a request and turns whatever it raises into an answer."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlxserver.api.errors import NOT_FOUND, RETRY_SECONDS, ApiError, Busy, RequestFault, server_error
from mlxserver.api.json_response import json_response
from mlxserver.api.routes import Route
from mlxserver.api.state import ServerState
from mlxserver.api.unavailable import Handler
from mlxserver.chat.errors import ChatError
from mlxserver.telemetry.log import srv

log = srv("log_server_request")
log_error = logging.getLogger("mlxserver.srv").exception

QUIET_PATHS = frozenset(["/health", "/v1/health", "/models", "/v1/models", "/props", "/metrics"])
"""What monitors ask for again and again is not logged."""

LONGEST_LOGGED = 200
"""Characters of a path in the log."""

UNKNOWN = "unknown"
"""The route of requests that no route fits, in the metrics."""


class Router:
    """The innermost ASGI application. Paths must fit exactly; ``files`` serves the rest of GET, if given."""

    def __init__(
        self, state: ServerState, routes: Iterable[Route], prefix: str = "", files: ASGIApp | None = None
    ) -> None:
        self._state = state
        self._files = files
        self._exact: dict[tuple[str, str], Route] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Route]] = []
        for route in routes:
            for path in route.paths:
                self._add(route, prefix + path)

    def _add(self, route: Route, path: str) -> None:
        if "{" not in path:
            self._exact[route.method, path] = route
            return
        pattern = re.sub(r"\\{\w+\\}", "[^/]*", re.escape(path))
        self._patterns.append((route.method, re.compile(pattern), route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        route = self._find(scope)
        status = _Status(send)
        scope["server_state"] = self._state
        if route is None and self._files is not None and scope["method"] in ("GET", "HEAD"):
            await _serve_file(self._files, scope, receive, status)
        else:
            await self._answer(route, scope, receive, status)
        self._report(scope, route, status.code, time.perf_counter() - started)

    def _find(self, scope: Scope) -> Route | None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = scope["path"]
        route = self._exact.get((method, path))
        if route is not None:
            return route
        return next((r for m, pattern, r in self._patterns if m == method and pattern.fullmatch(path)), None)

    async def _answer(self, route: Route | None, scope: Scope, receive: Receive, status: _Status) -> None:
        request = Request(scope, receive)
        response = (
            NOT_FOUND_RESPONSE if route is None else await answer_of(route.handler, request, self._state)
        )
        if response.status_code == 404:
            response = NOT_FOUND_RESPONSE
        try:
            await response(scope, receive, status)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status.code:  # the client sees that the answer ends early
                raise
            log_error("%s %s failed", request.method, request.url.path)
            await error_response(unforeseen(error))(scope, receive, status)

    def _report(self, scope: Scope, route: Route | None, status: int, seconds: float) -> None:
        if self._state.metrics is not None:
            self._state.metrics.request_done(route.paths[0] if route else UNKNOWN, status, seconds)
        if scope["path"] not in QUIET_PATHS:
            client = scope.get("client") or ("", 0)
            path = scope["path"][:LONGEST_LOGGED]
            log.info("done request: %s %s %s %d", scope["method"], path, client[0], status)


class _Status:
    """Passes messages on and remembers the status that was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.code = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.code = message["status"]
        await self._send(message)


NOT_FOUND_RESPONSE = json_response(NOT_FOUND, 404)


async def answer_of(handler: Handler, request: Request, state: ServerState) -> Response:
    """What the handler answers, or the error that it raises as an answer."""
    try:
        return await handler(request, state)
    except RequestFault as error:
        return error_response(error.strict() if state.options.strict_http else error)
    except ApiError as error:
        return error_response(error)
    except ChatError as error:
        type = "invalid_request_error" if state.options.strict_http else error.type
        return error_response(ApiError(type, str(error)))
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        log_error("%s %s failed", request.method, request.url.path)
        return error_response(unforeseen(error))


def unforeseen(error: Exception) -> ApiError:
    return server_error(str(error) or error.__class__.__name__)


def error_response(error: ApiError) -> Response:
    response = json_response(error.body(), error.status)
    if isinstance(error, Busy):
        response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


async def _serve_file(files: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    from starlette.exceptions import HTTPException

    try:
        await files(scope, receive, send)
    except HTTPException:
        await NOT_FOUND_RESPONSE(scope, receive, send)
