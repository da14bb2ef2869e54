"""``POST /slots/{id}?action=save|restore|erase``: a slot's state to a file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import ApiError, RequestFault, invalid_request, not_supported
from mlxserver.api.field_types import text
from mlxserver.api.json_body import read_json, type_name
from mlxserver.api.json_response import json_response
from mlxserver.api.state import ServerState

INT_MAX = 2**31 - 1
LONGEST_NAME = 255
"""Bytes of a file name."""
REFUSED_CHARACTERS = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
"""Separators, wildcards, and characters that look like a dot or a separator."""


async def slot_action(request: Request, state: ServerState) -> Response:
    """Saves a slot's state to a file, takes it from one, or forgets it."""
    if not state.options.slot_save_path:
        raise not_supported("This server does not support slots action. Start it with `--slot-save-path`")
    slot = _slot_id(request.url.path.rsplit("/", 1)[1])
    match request.query_params.get("action"):
        case "save":
            return await _save(request, state, slot)
        case "restore":
            return await _restore(request, state, slot)
        case "erase":
            outcome = await state.engine.act("erase", slot)
            return json_response({"id_slot": slot, "n_erased": outcome.n_tokens})
        case _:
            raise invalid_request("Invalid action")


async def _save(request: Request, state: ServerState, slot: int) -> Response:
    name = await _filename(request)
    outcome = await state.engine.act("save", slot, _path(state, name))
    if outcome.error:
        raise ApiError("server_error", "Unable to save slot")
    return json_response(
        {
            "id_slot": slot,
            "filename": name,
            "n_saved": outcome.n_tokens,
            "n_written": outcome.n_bytes,
            "timings": {"save_ms": outcome.seconds * 1e3},
        }
    )


async def _restore(request: Request, state: ServerState, slot: int) -> Response:
    name = await _filename(request)
    outcome = await state.engine.act("restore", slot, _path(state, name))
    if outcome.error:
        raise invalid_request(f"Unable to restore slot: {outcome.error}")
    return json_response(
        {
            "id_slot": slot,
            "filename": name,
            "n_restored": outcome.n_tokens,
            "n_read": outcome.n_bytes,
            "timings": {"restore_ms": outcome.seconds * 1e3},
        }
    )


def _slot_id(text: str) -> int:
    """The number at the start of ``text``, as C reads it."""
    digits = text.strip()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    end = next((i for i, c in enumerate(digits) if not ("0" <= c <= "9")), len(digits))
    if end == 0 or int(digits[:end]) > INT_MAX:
        raise invalid_request("Invalid slot ID")
    slot = sign * int(digits[:end])
    if slot < 0:
        raise invalid_request("Invalid slot ID")
    return slot


async def _filename(request: Request) -> str:
    body: Any = await read_json(request)
    if not isinstance(body, dict):
        raise RequestFault(f"[json.exception.type_error.304] cannot use at() with {type_name(body)}")
    if "filename" not in body:
        raise RequestFault("[json.exception.out_of_range.403] key 'filename' not found")
    try:
        name = text(body["filename"])
    except ValueError as error:
        raise RequestFault(str(error)) from None
    if not is_plain_name(name):
        raise invalid_request("Invalid filename")
    return name


def is_plain_name(name: str) -> bool:
    """A name that stays in its folder on every system."""
    return (
        0 < len(name.encode("utf-8", "surrogatepass")) <= LONGEST_NAME
        and not any(c in REFUSED_CHARACTERS or c < " " or "\x7f" <= c <= "\x9f" for c in name)
        and not any("\ud800" <= c <= "\udfff" for c in name)
        and name.strip(" ") == name
        and not name.endswith(".")
        and ".." not in name
    )


def _path(state: ServerState, name: str) -> Path:
    return Path(state.options.slot_save_path) / name
