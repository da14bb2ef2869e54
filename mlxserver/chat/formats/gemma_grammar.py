"""The grammar of Gemma's values for a JSON schema. What a schema says beyond types is left to the model."""

from __future__ import annotations

from typing import Any

from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.formats.schemas import is_string, properties, required, string_pattern, string_values

_MAX_DEPTH = 8


class ValueGrammar:
    def __init__(self, writer: GrammarWriter, quote: str) -> None:
        self._writer = writer
        self._quote = quote

    def object(self, schema: Any, depth: int = 0) -> str:
        """The needed arguments come first, so that commas know their place."""
        writer, needed = self._writer, required(schema)
        pairs = {
            key: f"{writer.text(key + ':')} {self.value(value, depth + 1)}"
            for key, value in properties(schema).items()
        }
        first = [pair for key, pair in pairs.items() if key in needed]
        others = [pair for key, pair in pairs.items() if key not in needed]
        if not first and others:
            inner = f"({writer.one_of(others)})?"
        else:
            inner = f" {writer.text(',')} ".join(first)
            inner += "".join(f" ({writer.text(',')} {pair})?" for pair in others)
        return writer.rule(f"{writer.text('{')} {inner} {writer.text('}')}")

    def value(self, schema: Any, depth: int = 0) -> str:
        fields = schema if isinstance(schema, dict) else {}
        for key in ("anyOf", "oneOf"):
            if isinstance(fields.get(key), list) and fields[key] and depth < _MAX_DEPTH:
                return self._writer.one_of(self.value(branch, depth + 1) for branch in fields[key])
        if is_string(fields):
            return self._string(fields)
        if isinstance(fields.get("enum"), list):
            return self._writer.one_of(self._listed(value) for value in fields["enum"])
        kinds = fields.get("type", ["string", "number", "boolean"])
        names = kinds if isinstance(kinds, list) else [kinds]
        return self._writer.one_of(self._of_kind(name, fields, depth) for name in names)

    def _of_kind(self, kind: Any, fields: dict[str, Any], depth: int) -> str:
        writer = self._writer
        match kind:
            case "object" if depth < _MAX_DEPTH:
                return self.object(fields, depth)
            case "array" if depth < _MAX_DEPTH:
                item = self.value(fields.get("items"), depth + 1)
                items = f"({item} ({writer.text(',')} {item})*)?"
                return writer.rule(f"{writer.text('[')} {items} {writer.text(']')}")
            case "integer" | "number" | "boolean" | "null":
                return writer.json({**fields, "type": kind})
            case _:
                return self._string(fields)

    def _listed(self, value: Any) -> str:
        if isinstance(value, str):
            return self._writer.text(f"{self._quote}{value}{self._quote}")
        names = {True: "true", False: "false", None: "null"}
        is_name = value is None or isinstance(value, bool)
        return self._writer.text(names[value] if is_name else str(value))

    def _string(self, schema: Any) -> str:
        writer, values = self._writer, string_values(schema)
        if values is not None:
            return writer.one_of(self._listed(value) for value in values)
        return f"{writer.text(self._quote)} {writer.text_until(self._quote, string_pattern(schema))}"
