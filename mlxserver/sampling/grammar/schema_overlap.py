"""Whether what is generated for one schema can also fit another one."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from mlxserver.sampling.grammar.schema_words import demands, type_of


def are_exclusive(schemas: list[Any]) -> bool:
    """Nothing generated for one of them fits another. What is generated has no keys of its own."""
    return all(_apart(a, b) and _apart(b, a) for a, b in combinations(schemas, 2))


def _apart(made_for: Any, other: Any) -> bool:
    if not isinstance(made_for, dict) or not isinstance(other, dict):
        return False
    kinds, other_kinds = _types(made_for), _types(other)
    if kinds and other_kinds and not any(_meet(a, b) for a in kinds for b in other_kinds):
        return True
    values, other_values = _values(made_for), _values(other)
    if values is not None and other_values is not None:
        return not any(_same(a, b) for a in values for b in other_values)
    if kinds == {"object"} and values is None:
        return _objects_apart(made_for, other)
    return False


def _objects_apart(made_for: dict[str, Any], other: dict[str, Any]) -> bool:
    properties, required = made_for.get("properties"), made_for.get("required", [])
    if not isinstance(properties, dict) or demands(made_for) - {"type", "properties", "required"}:
        return False
    wanted = other.get("required", [])
    if _types(other) == {"object"} and isinstance(wanted, list) and set(wanted) - properties.keys():
        return True
    others = other.get("properties", {})
    shared = [key for key in required if key in properties and isinstance(others, dict) and key in others]
    return any(_apart(properties[key], others[key]) for key in shared)


def _types(schema: dict[str, Any]) -> set[str]:
    """The types that its values can have; empty where it does not say."""
    values = _values(schema)
    if values is not None:
        return {type_of(value) for value in values}
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _meet(a: str, b: str) -> bool:
    return a == b or {a, b} == {"integer", "number"}


def _same(a: Any, b: Any) -> bool:
    """JSON schema's equality: 1 and 1.0 are equal, 1 and true are not. Lists and objects count as equal."""
    if isinstance(a, list | dict) or isinstance(b, list | dict):
        return type(a) is type(b)
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
