"""``/completion``, ``/completions`` and ``/v1/completions``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.completion_json import NativeDialect, OpenAiCompletionDialect
from mlxserver.api.completion_runner import respond
from mlxserver.api.json_body import read_json
from mlxserver.api.state import ServerState


async def completion(request: Request, state: ServerState) -> Response:
    """llama.cpp's own API."""
    body = await read_json(request)
    return await respond(request, state, body, lambda wanted: NativeDialect(wanted, state.model_name))


async def openai_completion(request: Request, state: ServerState) -> Response:
    """OpenAI's text completions, with every native field as well."""
    body = await read_json(request)
    return await respond(
        request, state, body, lambda wanted: OpenAiCompletionDialect(wanted, state.model_name)
    )
