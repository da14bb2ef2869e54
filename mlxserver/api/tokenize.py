"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.errors import RequestFault
from mlxserver.api.field_types import flag, integer, value_or
from mlxserver.api.json_body import read_json, wrong_type
from mlxserver.api.json_response import json_response
from mlxserver.api.prompts import check_tokens, tokenize_mixed
from mlxserver.api.state import ServerState
from mlxserver.models.model import Tokenizer


async def tokenize(request: Request, state: ServerState) -> Response:
    """The ids of ``content``, with ``with_pieces`` their texts too. A flag of a wrong type is ignored."""
    body = await read_json(request)
    return await aside(request, lambda: json_response({"tokens": _tokens(body, state.model.tokenizer)}))


async def detokenize(request: Request, state: ServerState) -> Response:
    """The text of ``tokens``, special ones shown."""
    body = await read_json(request)
    return await aside(request, lambda: json_response({"content": _text(body, state.model.tokenizer)}))


def _tokens(body: Any, tokenizer: Tokenizer) -> list[Any]:
    if not isinstance(body, dict) or "content" not in body:
        return []
    add_special = value_or(body, "add_special", flag, False)
    parse_special = value_or(body, "parse_special", flag, True)
    try:
        tokens = tokenize_mixed(body["content"], tokenizer, add_special, parse_special)
        return _with_pieces(tokens, tokenizer) if value_or(body, "with_pieces", flag, False) else tokens
    except ValueError as error:
        raise RequestFault(str(error)) from None


def _text(body: Any, tokenizer: Tokenizer) -> str:
    tokens = body.get("tokens", []) if isinstance(body, dict) else []
    try:
        ids = _token_ids(tokens, tokenizer)
    except ValueError as error:
        raise RequestFault(str(error)) from None
    return b"".join(map(tokenizer.piece, ids)).decode("utf-8", "replace")


def _token_ids(value: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise wrong_type("array", value)
    read = integer()
    tokens = tuple(read(item) for item in value)
    check_tokens(tokens, tokenizer)
    return tokens


def _with_pieces(tokens: list[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    check_tokens(tuple(tokens), tokenizer)
    return [{"id": token, "piece": _text_or_bytes(tokenizer.piece(token))} for token in tokens]


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
