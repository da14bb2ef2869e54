"""``/slots``: what each slot does."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import ApiError, not_supported
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState
from mlxserver.engine.task import SlotView
from mlxserver.models.model import Tokenizer

NOT_LISTED = -1
"""In place of the id of an adapter that was unloaded while it was in use."""


async def slots(request: Request, state: ServerState) -> Response:
    """Every slot; with ``fail_on_no_slot`` an error when none is idle."""
    if not state.options.slots:
        raise not_supported("This server does not support slots endpoint. Start it with `--slots`")
    views = state.engine.snapshot().slots
    if request.query_params.get("fail_on_no_slot") and all(view.is_processing for view in views):
        raise ApiError("unavailable_error", "no slot available")
    return json_response([_slot(view, state) for view in views])


def _slot(view: SlotView, state: ServerState) -> dict[str, Any]:
    slot: dict[str, Any] = {
        "id": view.id,
        "n_ctx": view.n_ctx,
        "speculative": False,
        "is_processing": view.is_processing,
    }
    ids = state.adapters.ids()
    if ids:
        slot["lora"] = [
            {"id": ids.get(digest, NOT_LISTED), "scale": scale} for digest, scale in view.adapters
        ]
    if view.task_id < 0:
        return slot
    next_token = {
        "has_next_token": view.has_next_token,
        "has_new_line": False,
        "n_remain": view.n_remain,
        "n_decoded": view.n_decoded,
    }
    slot |= {
        "id_task": view.task_id,
        "n_prompt_tokens": view.n_prompt_tokens,
        "n_prompt_tokens_processed": view.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": view.n_prompt_tokens_cache,
        "params": view.settings,
        "next_token": [next_token],
    }
    return slot | (_texts(view, state.model.tokenizer, state.options.special) if view.prompt else {})


def _texts(view: SlotView, tokenizer: Tokenizer, special: bool) -> dict[str, str]:
    """Only with LLAMA_SERVER_SLOTS_DEBUG, which makes the engine tell the tokens."""
    generated = b"".join(tokenizer.piece(token, special) for token in view.generated)
    prompt = tokenizer.decode(view.prompt)
    return {"prompt": prompt.decode("utf-8", "replace"), "generated": generated.decode("utf-8", "replace")}
