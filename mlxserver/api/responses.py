"""``/v1/responses``: OpenAI's newer form of chats, without conversations that the server keeps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.chat import count_tokens, read_chat
from mlxserver.api.completion_runner import respond
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.responses_json import ResponsesDialect
from mlxserver.api.responses_request import chat_body
from mlxserver.api.state import ServerState


async def create_response(request: Request, state: ServerState) -> Response:
    """The answer to a list of items, with every native field as well."""
    body = await read_json(request)
    chat = await aside(request, lambda: read_chat(chat_body(body), state))
    return await respond(
        request, state, chat.fields, lambda wanted: ResponsesDialect(chat.rules, state.model_name)
    )


async def count_input_tokens(request: Request, state: ServerState) -> Response:
    """How many tokens the prompt of a response has."""
    body = await read_json(request)
    n_tokens = await aside(request, lambda: count_tokens(chat_body(body), state))
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})
