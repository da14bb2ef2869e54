"""The words of JSON schema: which of them say something about a value, and of what type."""

from __future__ import annotations

import json
from typing import Any

SCALARS = ("string", "number", "integer", "boolean", "null")
TYPES = ("object", "array", *SCALARS)

_OF_TYPE = {
    "object": {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedProperties",
    },
    "array": {
        "items",
        "prefixItems",
        "additionalItems",
        "contains",
        "minContains",
        "maxContains",
        "minItems",
        "maxItems",
        "uniqueItems",
        "unevaluatedItems",
    },
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set[str](),
    "null": set[str](),
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_OF_ANY = {
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
}
_FORMATS = {
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
}
"""Formats that are held to; others are notes."""
_VACUOUS: dict[str, tuple[Any, ...]] = {
    "required": ([],),
    "minItems": (0,),
    "minLength": (0,),
    "minProperties": (0,),
    "uniqueItems": (False,),
    "additionalProperties": (True,),
    "additionalItems": (True,),
    "patternProperties": ({},),
    "dependencies": ({},),
    "dependentRequired": ({},),
}


def demands(schema: dict[str, Any], kind: str | None = None) -> set[str]:
    """The words of ``schema`` that restrict values of type ``kind`` (of any type, if none is given)."""
    of_type = _OF_TYPE[kind] if kind else set().union(*_OF_TYPE.values())
    return {word for word in schema if word in of_type | _OF_ANY and not _is_vacuous(word, schema[word])}


def _is_vacuous(word: str, value: Any) -> bool:
    if word == "format":
        return not isinstance(value, str) or value not in _FORMATS and not value.startswith("uuid")
    return any(value == empty and type(value) is type(empty) for empty in _VACUOUS.get(word, ()))


def without_notes(schema: Any) -> Any:
    """Without formats that nothing is held to: llguidance refuses those that it does not know."""
    if isinstance(schema, list):
        return [without_notes(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {word: value for word, value in schema.items() if word != "format" or not _is_note(value)}
    return {word: value if word in _VALUES else without_notes(value) for word, value in kept.items()}


def _is_note(value: Any) -> bool:
    return isinstance(value, str) and _is_vacuous("format", value)


_VALUES = ("const", "enum", "default", "examples")
"""Words whose values are no schemas."""


def type_of(value: Any) -> str:
    """The JSON type of a value; a float without a fraction is a number only."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def fits_type(value: Any, kind: str) -> bool:
    found = type_of(value)
    return found == kind or (found, kind) == ("integer", "number")


def compact(value: Any) -> str:
    """As llama.cpp writes it: no spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
