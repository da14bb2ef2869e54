"""``/embedding``, ``/embeddings`` and ``/v1/embeddings``."""

from __future__ import annotations

import base64
import struct
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.embedding_runner import EMPTY, Tokens, Vector, evaluate, pooling_of
from mlxserver.api.errors import RequestFault, invalid_request, not_supported
from mlxserver.api.field_types import integer, text, value_or
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.prompts import tokenize_prompts
from mlxserver.api.state import ServerState

NO_EMBEDDINGS = "This server does not support embeddings. Start it with `--embeddings`"
_NOT_OPENAI = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
_NO_INPUT = '"input" or "content" must be provided'
_WRONG_FORMAT = "The format to return the embeddings in. Can be either float or base64"

_integer = integer()


async def embeddings(request: Request, state: ServerState) -> Response:
    """llama.cpp's own form."""
    _require_embeddings(state)
    return await _answer(request, state, is_openai=False)


async def openai_embeddings(request: Request, state: ServerState) -> Response:
    """OpenAI's form, unless the text comes as ``content``, which OpenAI does not know."""
    _require_embeddings(state)
    if pooling_of(state) == "none":
        raise invalid_request(_NOT_OPENAI)
    return await _answer(request, state, is_openai=True)


def _require_embeddings(state: ServerState) -> None:
    """With pooling ``rank`` a model gives scores, and vectors of no meaning."""
    if not state.options.embedding or pooling_of(state) == "rank":
        raise not_supported(NO_EMBEDDINGS)


async def _answer(request: Request, state: ServerState, is_openai: bool) -> Response:
    body = await read_json(request)
    name = next((name for name in ("input", "content") if isinstance(body, dict) and name in body), None)
    if name is None:
        raise invalid_request(_NO_INPUT)
    as_base64 = _wants_base64(body)
    prompts = await aside(request, lambda: _prompts(body[name], state))
    found = await evaluate(request, state, prompts, _normalize(body, state))
    if found is None:
        return Response()
    if not is_openai or name == "content":
        return json_response([{"index": i, "embedding": vectors} for i, vectors in enumerate(found)])
    model = value_or(body, "model", text, state.model_name)
    n_tokens = sum(map(len, prompts))
    return json_response(_openai(model, [vectors[0] for vectors in found], n_tokens, as_base64))


def _wants_base64(body: dict[str, Any]) -> bool:
    if "encoding_format" not in body:
        return False
    try:
        encoding = text(body["encoding_format"])
    except ValueError as error:
        raise RequestFault(str(error)) from None
    if encoding not in ("float", "base64"):
        raise invalid_request(_WRONG_FORMAT)
    return encoding == "base64"


def _prompts(value: Any, state: ServerState) -> list[Tokens]:
    """What llama-server reports as its own error is reported so here, although it is the client's."""
    try:
        prompts = tokenize_prompts(value, state.model.tokenizer)
    except ValueError as error:
        raise RequestFault(str(error)) from None
    if not all(prompts):
        raise invalid_request(EMPTY)
    return prompts


def _normalize(body: dict[str, Any], state: ServerState) -> int:
    try:
        given: int = _integer(body.get("embd_normalize", state.options.embd_normalize))
    except ValueError as error:
        raise RequestFault(str(error)) from None
    return given


def _openai(model: str, vectors: list[Vector], n_tokens: int, as_base64: bool) -> dict[str, Any]:
    return {
        "model": model,
        "object": "list",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        "data": [_openai_item(index, vector, as_base64) for index, vector in enumerate(vectors)],
    }


def _openai_item(index: int, vector: Vector, as_base64: bool) -> dict[str, Any]:
    if not as_base64:
        return {"embedding": vector, "index": index, "object": "embedding"}
    packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return {"embedding": packed, "index": index, "object": "embedding", "encoding_format": "base64"}
