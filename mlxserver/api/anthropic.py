"""``/v1/messages``: Anthropic's chats."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.anthropic_json import AnthropicDialect
from mlxserver.api.anthropic_request import chat_body
from mlxserver.api.aside import aside
from mlxserver.api.chat import count_tokens, read_chat
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.completion_runner import respond
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState


async def create_message(request: Request, state: ServerState) -> Response:
    """The next message of a chat."""
    given = await read_json(request)
    body = await aside(request, lambda: chat_body(given))
    chat = await aside(request, lambda: read_chat(body, state))
    own_stops = body.get("stop")

    def dialect(wanted: CompletionRequest) -> AnthropicDialect:
        stop_sequences = wanted.stop if own_stops else ()
        return AnthropicDialect(chat.rules, state.model_name, stop_sequences)

    return await respond(request, state, chat.fields, dialect)


async def count_input_tokens(request: Request, state: ServerState) -> Response:
    """How many tokens a chat's prompt has."""
    body = await read_json(request)
    n_tokens = await aside(request, lambda: count_tokens(chat_body(body), state))
    return json_response({"input_tokens": n_tokens})
