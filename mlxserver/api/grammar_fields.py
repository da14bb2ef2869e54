"""What a request's answer has to be: a grammar, a JSON schema, or what a chat made of its tools."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from mlxserver.api.field_types import text, value_or
from mlxserver.sampling.grammar.compiler import LLGUIDANCE
from mlxserver.sampling.grammar.schema import SchemaError, schema_grammar
from mlxserver.sampling.grammar.schema_words import compact
from mlxserver.sampling.params import Grammar, Trigger, TriggerKind

TRIGGER_KINDS: tuple[TriggerKind, ...] = ("token", "word", "pattern", "pattern_full")
"""By llama.cpp's number."""


def read_grammar(body: dict[str, Any]) -> Grammar | None:
    """The first of ``grammar`` and ``json_schema`` that is there; None where it is null or empty.

    Raises ValueError for a schema that is no schema; whatever else is wrong shows when it is compiled.
    """
    made = body.get("grammar")
    if isinstance(made, Grammar):
        return made
    if "grammar" in body:
        written = value_or(body, "grammar", text, "")
        return grammar_of(written) if written else None
    try:
        schema_grammar(body["json_schema"])
    except SchemaError as error:
        raise ValueError(f'"json_schema": {error}') from None
    return Grammar("json_schema", compact(body["json_schema"]))


def grammar_of(written: str) -> Grammar:
    return Grammar("lark" if written.startswith(LLGUIDANCE) else "gbnf", written)


def with_triggers(
    grammar: Grammar | None, lazy: bool, triggers: tuple[dict[str, Any], ...]
) -> Grammar | None:
    """Raises ValueError for a lazy grammar that nothing would ever start."""
    if grammar is None or not lazy:
        return grammar
    if not triggers:
        raise ValueError("Error: no triggers set for lazy grammar!")
    return replace(grammar, lazy=True, triggers=tuple(map(_trigger, triggers)))


def _trigger(item: dict[str, Any]) -> Trigger:
    if not 0 <= item["type"] < len(TRIGGER_KINDS):
        raise ValueError(f"Unknown grammar trigger type: {item['type']}")
    return Trigger(TRIGGER_KINDS[item["type"]], item["value"], item.get("token", -1))


def shown(grammar: Grammar | None) -> str:
    """What ``generation_settings`` call the grammar: a schema shows as the rules that it becomes."""
    if grammar is None:
        return ""
    is_schema = grammar.kind in ("json_schema", "json_answer")
    return str(schema_grammar(json.loads(grammar.text))) if is_schema else grammar.text
