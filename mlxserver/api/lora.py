"""``/lora-adapters``: the adapters and their default scales; loading and forgetting some while running."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.adapter_list import ListedAdapter
from mlxserver.api.errors import invalid_request, not_supported
from mlxserver.api.field_types import number, text
from mlxserver.api.json_body import read_json, type_name
from mlxserver.api.json_response import json_response
from mlxserver.api.lora_field import read_scales
from mlxserver.api.state import ServerState
from mlxserver.models.model import Tokenizer

NOT_APPLIED = 0.0
"""Default scale of an adapter that is loaded while others are served."""


async def lora_adapters(request: Request, state: ServerState) -> Response:
    """Every adapter with its default scale."""
    return json_response([_described(listed, state.model.tokenizer) for listed in state.adapters])


async def set_lora_adapters(request: Request, state: ServerState) -> Response:
    """New default scales; adapters that are not named get 0."""
    body = await read_json(request)
    if not isinstance(body, list):
        raise invalid_request("Request body must be an array")
    try:
        state.adapters.set_scales(read_scales(body))
    except ValueError as error:
        raise invalid_request(str(error)) from None
    return json_response({"success": True})


async def load_lora_adapter(request: Request, state: ServerState) -> Response:
    """Load a file or folder of ``--lora-dir``; other requests go on and do not use it unless they say so."""
    if not state.options.lora_dir:
        raise not_supported("This server does not load adapters. Start it with `--lora-dir`")
    body = await _object(request)
    name = _required(body, "name", text)
    scale = _required(body, "scale", number()) if "scale" in body else NOT_APPLIED
    path = Path(state.options.lora_dir) / name
    if name not in _names_in(state.options.lora_dir) or path.is_symlink():
        raise invalid_request(f"there is no adapter '{name}'")
    outcome = await state.engine.load_adapter(str(path))
    if isinstance(outcome, str):
        raise invalid_request(f"the adapter cannot be loaded: {outcome.replace(str(path), name)}")
    if state.adapters.has(outcome.digest):
        state.engine.unload_adapter(outcome.digest)
        raise invalid_request("the adapter is loaded already")
    listed = state.adapters.add(outcome, scale)
    described = _described(listed, state.model.tokenizer)
    return json_response({"success": True, "digest": outcome.digest} | described)


def _names_in(folder: str) -> list[str]:
    """Whatever a file is called: a name that the folder has leads nowhere else."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


async def unload_lora_adapter(request: Request, state: ServerState) -> Response:
    """No later request can use the adapter; those that use it now end as they began."""
    id = _required(await _object(request), "id", _whole_number)
    listed = state.adapters.remove(id)
    if listed is None:
        raise invalid_request(f"there is no adapter {id}")
    state.engine.unload_adapter(listed.info.digest)
    return json_response({"success": True})


async def _object(request: Request) -> dict[str, Any]:
    body = await read_json(request)
    if not isinstance(body, dict):
        raise invalid_request(f"Request body must be an object, but is {type_name(body)}")
    return body


def _required(body: dict[str, Any], field: str, convert: Any) -> Any:
    if field not in body:
        raise invalid_request(f"'{field}' is required")
    try:
        return convert(body[field])
    except ValueError as error:
        raise invalid_request(f"Field '{field}': {error}") from None


def _whole_number(value: Any) -> int:
    """Not as C reads a number: what is cut off or wraps around would be another adapter's id."""
    if type(value) is not int:
        raise ValueError("a whole number is wanted")
    return value


def _described(listed: ListedAdapter, tokenizer: Tokenizer) -> dict[str, Any]:
    info = listed.info
    described: dict[str, Any] = {
        "id": listed.id,
        "path": info.path,
        "scale": listed.scale,
        "task_name": info.task_name,
        "prompt_prefix": info.prompt_prefix,
    }
    if info.invocation:
        string = b"".join(tokenizer.piece(token) for token in info.invocation).decode("utf-8", "replace")
        described |= {"alora_invocation_string": string, "alora_invocation_tokens": list(info.invocation)}
    return described
