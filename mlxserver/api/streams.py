"""``/v1/stream`` and ``/v1/streams/lookup``: streams read again after their connection broke."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import ApiError, invalid_request
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.sse import EventStream
from mlxserver.api.state import ServerState
from mlxserver.api.tenant import tenant_of

MAX_NAMES = 4096
"""Conversations that one lookup may name."""


async def read_stream(request: Request, state: ServerState) -> Response:
    """The bytes of a conversation's stream from an offset on, then what still comes."""
    stream = state.streams.get(tenant_of(request), _conversation_id(request))
    if stream is None:
        raise ApiError("not_found_error", "Stream not found or expired")
    offset = _offset(request.query_params.get("from", ""))
    if offset < stream.n_dropped:
        raise invalid_request("Stream offset lost, please restart")
    return EventStream(stream.read(offset))


async def stop_stream(request: Request, state: ServerState) -> Response:
    """Ends the conversation's completion and forgets its stream, if there is one."""
    state.streams.stop(tenant_of(request), _conversation_id(request))
    return Response(status_code=204, headers={"Content-Type": "application/json"})


async def lookup_streams(request: Request, state: ServerState) -> Response:
    """The streams of the conversations that the client names."""
    try:
        body = await read_json(request)
    except ApiError as error:
        message = f"invalid body: {error.message}"
        return json_response({"error": {"message": message, "type": "invalid_request_error"}}, 400)
    ids = body.get("conversation_ids") if isinstance(body, dict) else None
    names = [name for name in ids if isinstance(name, str) and name] if isinstance(ids, list) else []
    if len(names) > MAX_NAMES:
        raise invalid_request(f"more than {MAX_NAMES} conversation ids")
    return json_response(
        [
            {
                "conversation_id": stream.conversation_id,
                "is_done": stream.is_done,
                "total_bytes": stream.total_bytes,
                "started_at": stream.started_at,
                "completed_at": stream.completed_at,
            }
            for stream in state.streams.matching(tenant_of(request), names)
        ]
    )


def _conversation_id(request: Request) -> str:
    conversation_id = request.query_params.get("conv_id", "")
    if not conversation_id:
        raise invalid_request("Missing conversation id in path")
    return conversation_id


def _offset(text: str) -> int:
    """A number at the start of ``text`` counts, as for C++'s stoull; nothing at all is 0."""
    if not text:
        return 0
    digits = re.match(r"\s*\+?(\d+)", text)
    if digits is None:
        raise invalid_request("Invalid 'from' offset")
    return int(digits[1])
