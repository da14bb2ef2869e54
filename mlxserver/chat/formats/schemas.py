"""What formats need to know of a function's parameters, a JSON schema."""

from __future__ import annotations

import json
from typing import Any

_COMBINATIONS = ("anyOf", "oneOf", "allOf", "$ref", "type", "enum", "const")


def is_string(schema: Any) -> bool:
    """Every value of the schema is a string."""
    if not isinstance(schema, dict):
        return False
    if "type" in schema:
        return bool(schema["type"] == "string" or schema["type"] == ["string"])
    if "const" in schema:
        return isinstance(schema["const"], str)
    if isinstance(schema.get("enum"), list):
        return bool(schema["enum"]) and all(isinstance(value, str) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return bool(schema[key]) and all(is_string(branch) for branch in schema[key])
    return False


def arguments_schema(parameters: Any) -> dict[str, Any]:
    """Arguments are an object; only those that are listed, unless others are allowed by name."""
    schema = dict(parameters) if isinstance(parameters, dict) else {}
    if not any(key in schema for key in _COMBINATIONS):
        schema["type"] = "object"
    if schema.get("type") == "object":
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return schema


def properties(parameters: Any) -> dict[str, Any]:
    """The schema of each argument, with the definitions that it may refer to."""
    schema = parameters if isinstance(parameters, dict) else {}
    found = schema.get("properties")
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    if not isinstance(found, dict):
        return {}
    return {name: {**value, **shared} if isinstance(value, dict) else value for name, value in found.items()}


def required(parameters: Any) -> frozenset[str]:
    names = parameters.get("required") if isinstance(parameters, dict) else None
    return (
        frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
    )


def string_values(schema: Any) -> list[str] | None:
    """The strings that are allowed, where they are listed."""
    if not isinstance(schema, dict):
        return None
    if isinstance(schema.get("const"), str):
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return [value for value in schema["enum"] if isinstance(value, str)]
    return None


def string_pattern(schema: Any) -> str:
    """A pattern for the text of a string: its length, or its ``pattern``."""
    fields = schema if isinstance(schema, dict) else {}
    pattern = fields.get("pattern")
    if isinstance(pattern, str):
        front = "" if pattern.startswith("^") else "(?s:.*)"
        back = "" if pattern.endswith("$") else "(?s:.*)"
        return f"{front}({pattern.removeprefix('^').removesuffix('$')}){back}".replace("/", r"\/")
    low, high = fields.get("minLength"), fields.get("maxLength")
    if isinstance(low, int) or isinstance(high, int):
        return f"(?s:.{{{low if isinstance(low, int) else 0},{high if isinstance(high, int) else ''}}})"
    return "(?s:.*)"


def quoted(text: str) -> str:
    """``text`` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)
