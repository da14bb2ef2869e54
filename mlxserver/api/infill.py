"""``/infill``: code between a prefix and a suffix, answered as llama.cpp's own completions are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.completion_json import NativeDialect
from mlxserver.api.completion_runner import respond
from mlxserver.api.errors import RequestFault, invalid_request, not_supported
from mlxserver.api.field_types import text, value_or
from mlxserver.api.json_body import read_json
from mlxserver.api.prompts import tokenize_mixed
from mlxserver.api.state import ServerState
from mlxserver.models.model import Tokenizer

PROJECT = "myproject\n"
CURRENT_FILE = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before each file where the model has no token for that."""

_WRONG_EXTRA = '"input_extra" must be an array of {"filename": string, "text": string}'
_NO_TEXT = 'extra_context chunk must contain a "text" field with a string value'
_WRONG_NAME = 'extra_context chunk\'s "filename" field must be a string'


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a prompt may take: ``n_batch`` for prefix and suffix, the context for the rest."""

    n_batch: int
    n_ctx: int
    n_predict: int
    """The command line's; -1 takes no room, as in llama-server."""


async def infill(request: Request, state: ServerState) -> Response:
    """Whatever the native completions take, and a prefix and a suffix instead of their prompt."""
    _check_model(state.model.tokenizer)
    body = await read_json(request)
    if not isinstance(body, dict):
        raise RequestFault("[json.exception.type_error.305] cannot use operator[] with a string argument")
    prompt = await aside(request, lambda: _prompt(body, state))
    fields = body | {"prompt": prompt}
    return await respond(request, state, fields, lambda wanted: NativeDialect(wanted, state.model_name))


def _prompt(body: dict[str, Any], state: ServerState) -> list[int]:
    tokenizer, options = state.model.tokenizer, state.options
    files = _read_files(body)
    room = Room(options.batch_size, state.engine.n_ctx, options.n_predict)
    try:
        prefix, suffix = (_tokens(body, key, tokenizer) for key in ("input_prefix", "input_suffix"))
    except ValueError as error:
        raise RequestFault(str(error)) from None
    started = tokenizer.encode(value_or(body, "prompt", text, ""), parse_special=True)
    return infill_prompt(tokenizer, prefix, suffix, started, files, room, options.spm_infill)


def infill_prompt(
    tokenizer: Tokenizer,
    prefix: list[int],
    suffix: list[int],
    started: list[int],
    files: list[tuple[str, str]],
    room: Room,
    suffix_first: bool,
) -> list[int]:
    """The token ids of a prompt in the form that Qwen2.5-Coder's report names, cut to the room there is.

    ``started`` is the beginning of the middle; ``files`` are (name, text) pairs of the same repository.
    """
    quarter = room.n_batch // 4
    kept_prefix = _last(prefix, 3 * quarter)
    kept_suffix = suffix[: max(0, quarter - (2 + len(started)))]
    before = [tokenizer.fim_pre, *kept_prefix, *started]
    after = [tokenizer.fim_suf, *kept_suffix]
    parts = after + before if suffix_first else before + after
    bos = [tokenizer.bos_id] if tokenizer.add_bos else []
    context = _last(_repository(tokenizer, files), room.n_ctx - room.n_batch - 2 * room.n_predict)
    return [*context, *bos, *parts, tokenizer.fim_mid]


def _repository(tokenizer: Tokenizer, files: list[tuple[str, str]]) -> list[int]:
    """The other files, and the name of the one that is being written."""
    tokens = _marked(tokenizer, tokenizer.fim_rep, PROJECT)
    for name, content in files:
        tokens += _marked(tokenizer, tokenizer.fim_sep, f"{name}\n") or _plain(tokenizer, SNIPPET)
        tokens += _plain(tokenizer, content)
    return tokens + _marked(tokenizer, tokenizer.fim_sep, CURRENT_FILE)


def _marked(tokenizer: Tokenizer, marker: int, name: str) -> list[int]:
    """Nothing where the model does not have the marker."""
    return [marker, *_plain(tokenizer, name)] if marker >= 0 else []


def _plain(tokenizer: Tokenizer, content: str) -> list[int]:
    return tokenizer.encode(content, parse_special=False)


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[-count:] if count > 0 else []


def _check_model(tokenizer: Tokenizer) -> None:
    needed = {"prefix": tokenizer.fim_pre, "suffix": tokenizer.fim_suf, "middle": tokenizer.fim_mid}
    missing = "".join(f"{name} token is missing. " for name, token in needed.items() if token < 0)
    if missing:
        raise not_supported(f"Infill is not supported by this model: {missing}")


def _tokens(body: dict[str, Any], key: str, tokenizer: Tokenizer) -> list[int]:
    if key not in body:
        raise ValueError(f"[json.exception.out_of_range.403] key '{key}' not found")
    return tokenize_mixed(body[key], tokenizer, add_special=False, parse_special=False)


def _read_files(body: dict[str, Any]) -> list[tuple[str, str]]:
    extra = body.get("input_extra", [])
    if not isinstance(extra, list):
        raise invalid_request(_WRONG_EXTRA)
    return [_read_file(file) for file in extra]


def _read_file(file: Any) -> tuple[str, str]:
    fields = file if isinstance(file, dict) else {}
    if not isinstance(fields.get("text"), str):
        raise invalid_request(_NO_TEXT)
    if not isinstance(fields.get("filename", ""), str):
        raise invalid_request(_WRONG_NAME)
    return fields.get("filename", "tmp"), fields["text"]
