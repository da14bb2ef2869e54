"""One HTTP connection, with bounds on what a client may hold without giving anything for it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlxserver.api.errors import RETRY_SECONDS, middleware_body
from mlxserver.api.json_body import dump_json
from mlxserver.telemetry.log import srv

log = srv("connection")

MAX_HEAD = 64 * 1024
"""Bytes of a request's line and headers."""
HEAD_SECONDS = 30.0
"""From a connection's beginning, or a further request's first byte, to the end of its headers; also what the
rest of a body may take that nobody reads any more."""
LINGER_SECONDS = 1.0
"""How long a client that is turned away may take to read why."""
LEAST_READ = 64 * 1024
"""Bytes that a client has to read of a full buffer within the write timeout."""

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """``write_seconds``: how long a client may leave a full buffer unread; None: for ever."""

    max_connections: int
    write_seconds: float | None


class Connection(H11Protocol):
    """Made by the server for every client; uvicorn's, with the bounds above."""

    def __init__(self, bounds: Bounds, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._is_refused = False

    # -------------------------------------------------------------- reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._bounds.max_connections:
            self.connections.discard(self)
            self._refuse(503, "unavailable_error", "Too many connections")
        else:
            self._settle()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._settle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._settle()
        self._watch_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_stalled()
        super().connection_lost(exc)

    def _cancel_deadline(self) -> None:
        _cancel(self._deadline)
        self._deadline = None

    def _cancel_stalled(self) -> None:
        _cancel(self._stalled)
        self._stalled = None

    def _settle(self) -> None:
        """While no request is being answered a clock runs that no trickle of bytes sets back."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._end_late)

    def _end_late(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.their_state is h11.IDLE:
            self._refuse(408, "invalid_request_error", "Request Timeout")
        else:
            self.transport.abort()

    # -------------------------------------------------------------- refusing

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or has too long headers."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status if status in _REASONS else 400, "invalid_request_error", msg)

    def _refuse(self, status: int, type: str, message: str) -> None:
        """Answers without a request, and closes."""
        self._is_refused = True
        self._cancel_deadline()
        self._unset_keepalive_if_required()
        error = middleware_body(type, message)
        error["error"]["code"] = status
        content = dump_json(error).encode()
        head = [
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Service Unavailable')}",
            "Server: llama.cpp",
            "Content-Type: application/json; charset=utf-8",
            f"Content-Length: {len(content)}",
            "Connection: close",
            *([f"Retry-After: {RETRY_SECONDS}"] if status == 503 else []),
        ]
        self.transport.write("\r\n".join([*head, "", ""]).encode() + content)
        if self.transport.can_write_eof():
            # closing at once, with something unread, would take the answer away from the client
            self.transport.write_eof()
        else:
            self.transport.close()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _unsupported_upgrade_warning(self) -> None:
        """Such a request is answered like any other; a client is not to fill the log with it."""

    # -------------------------------------------------------------- writing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stalled()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader()

    def _watch_reader(self) -> None:
        seconds, unread = self._bounds.write_seconds, self.transport.get_write_buffer_size()
        if self._stalled is None and seconds is not None and unread:
            self._stalled = self.loop.call_later(seconds, self._check_reader, unread)

    def _check_reader(self, unread_before: int) -> None:
        self._stalled = None
        unread = self.transport.get_write_buffer_size()
        if not unread:
            return
        if unread_before - unread < LEAST_READ:
            log.warning("a client does not read its answer: %d bytes are left; its connection ends", unread)
            self.transport.abort()
        else:
            self._watch_reader()


def connections_with(bounds: Bounds) -> Any:
    """What makes connections, in the place of uvicorn's class."""
    return partial(Connection, bounds)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
