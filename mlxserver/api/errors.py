"""Errors a client sees: llama-server's types, statuses, texts and key orders."""

from __future__ import annotations

from typing import Any

from mlxserver.engine.task import Failed

RETRY_SECONDS = 1
"""When a client may come again that was sent away for want of room."""

STATUS = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "server_error": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}


class ApiError(Exception):
    """Answered as ``{"error": {code, message, type, **fields}}`` with the status of its type."""

    def __init__(self, type: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.type = type
        self.message = message
        self.fields = fields

    @property
    def status(self) -> int:
        """The HTTP status; a type this module does not know is a server error."""
        return STATUS.get(self.type, 500)

    def body(self) -> dict[str, Any]:
        """The JSON body of a handler's error."""
        return {"error": {"code": self.status, "message": self.message, "type": self.type, **self.fields}}


class Busy(ApiError):
    """The server has too much to do just now; the client is told to come again."""

    def __init__(self, message: str) -> None:
        super().__init__("unavailable_error", message)


class RequestFault(ApiError):
    """A fault of the request that llama-server calls its own: 500, or 400 with ``--strict-http``."""

    def __init__(self, message: str) -> None:
        super().__init__("server_error", message)

    def strict(self) -> ApiError:
        return invalid_request(self.message)


def error_of(failed: Failed) -> ApiError:
    """The error that a failed task is for its client."""
    if failed.is_fault_of_request:
        return RequestFault(failed.message)
    return ApiError(failed.type, failed.message, **failed.fields)


def invalid_request(message: str) -> ApiError:
    return ApiError("invalid_request_error", message)


def server_error(message: str) -> ApiError:
    return ApiError("server_error", message)


def not_supported(message: str) -> ApiError:
    return ApiError("not_supported_error", message)


def middleware_body(type: str, message: str) -> dict[str, Any]:
    """The JSON body of an error found before any handler runs: its key order differs."""
    return {"error": {"message": message, "type": type, "code": STATUS[type]}}


INVALID_KEY = middleware_body("authentication_error", "Invalid API Key")
LOADING = middleware_body("unavailable_error", "Loading model")
FAILED = middleware_body("unavailable_error", "The engine has failed")
NOT_FOUND = middleware_body("not_found_error", "File Not Found")
