"""Request fields that name tokens by their text."""

from __future__ import annotations

from typing import Any

from mlxserver.api.field_types import integer, items_of, text
from mlxserver.api.json_body import type_name
from mlxserver.models.model import Tokenizer

TRIGGER_TOKEN, TRIGGER_WORD = 0, 1


def preserved_tokens(value: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens among ``value``'s texts; a text that is not exactly one token is passed over."""
    tokens = (tokenizer.encode(text(item), parse_special=True) for item in items_of(value))
    return frozenset(ids[0] for ids in tokens if len(ids) == 1)


def grammar_triggers(
    value: Any, tokenizer: Tokenizer, preserved: frozenset[int]
) -> tuple[dict[str, Any], ...]:
    """What starts a lazy grammar; a word that is one token becomes a token trigger."""
    return tuple(_trigger(item, tokenizer, preserved) for item in items_of(value))


def _trigger(item: Any, tokenizer: Tokenizer, preserved: frozenset[int]) -> dict[str, Any]:
    kind, word = integer()(_required(item, "type")), text(_required(item, "value"))
    if kind == TRIGGER_TOKEN:
        return {"type": kind, "value": word, "token": integer()(_required(item, "token"))}
    ids = tokenizer.encode(word, parse_special=True) if kind == TRIGGER_WORD else []
    if len(ids) != 1:
        return {"type": kind, "value": word}
    if ids[0] not in preserved:
        raise ValueError(f"Grammar trigger word should be marked as preserved token: {word}")
    return {"type": TRIGGER_TOKEN, "value": word, "token": ids[0]}


def _required(item: Any, key: str) -> Any:
    if not isinstance(item, dict):
        raise ValueError(f"[json.exception.type_error.304] cannot use at() with {type_name(item)}")
    if key not in item:
        raise ValueError(f"[json.exception.out_of_range.403] key '{key}' not found")
    return item[key]
