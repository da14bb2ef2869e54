"""What formats need to know of a JSON schema."""

from __future__ import annotations

from typing import Any


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
