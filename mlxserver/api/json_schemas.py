"""JSON schemas of requests and answers: the manifest's fields with the types that the readers have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from mlxserver.api.completion_schema import FIELDS
from mlxserver.api.field_rows import FieldRow, Place, Schema, field_rows, rows_of
from mlxserver.api.field_types import schema_of

EXTENDS = {"chat": "completion", "infill": "completion", "responses": "chat"}
"""Requests that take the fields of another one too."""

REPLACED = {"chat": {"prompt"}, "responses": {"messages", "prompt"}}
"""Fields of that other one that the request has something else for."""


def component(api: str, place: Place) -> str:
    """The name of a schema in the description."""
    return api if place == "shared" else f"{api}_{place}"


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def components(defaults: Mapping[str, Any]) -> dict[str, Schema]:
    """Every schema by its name. ``defaults``: what a completion takes for fields that it leaves out."""
    found: dict[str, Schema] = {}
    for api, place in sorted({(row.api, row.place) for row in field_rows()}):
        if place == "body":
            found[component(api, place)] = object_schema(body_rows(api), defaults)
        elif place in ("response", "event", "shared"):
            found[component(api, place)] = object_schema(rows_of(api, place))
    return found


def body_rows(api: str) -> list[FieldRow]:
    """The rows of a request's body, its own last."""
    own = list(rows_of(api, "body"))
    if api not in EXTENDS:
        return own
    replaced = REPLACED.get(api, set()) | {name for row in own for name in row.names}
    inherited = (_without(row, replaced) for row in body_rows(EXTENDS[api]))
    return [*(row for row in inherited if row.names), *own]


def object_schema(rows: Iterable[FieldRow], defaults: Mapping[str, Any] | None = None) -> Schema:
    """An object, or whatever the row of the whole says, with a property for each name of each row."""
    whole: Schema = {"type": "object"}
    for row in rows:
        for name in row.names:
            schema = _field(row, name, defaults or {})
            if not name:
                whole.update(schema)
                continue
            *parents, last = name.split("/")
            for holder in _holders(whole, parents):
                holder.setdefault("properties", {})[last] = schema
                if row.required:
                    holder.setdefault("required", []).append(last)
    return whole


def _field(row: FieldRow, name: str, defaults: Mapping[str, Any]) -> Schema:
    """A completion's field has the type and the limits that its reader has."""
    schema = dict(row.schema)
    if row.ref:
        schema |= {"items": reference(row.ref)} if schema.get("type") == "array" else reference(row.ref)
    if row.api == "completion" and row.place == "body":
        schema |= _read_as().get(name, {})
        if name in defaults and _fits(defaults[name], schema):
            schema["default"] = defaults[name]
    if name != row.names[0]:
        schema["description"] = f"Another name of {row.names[0]}"
    if row.state != "honoured":
        schema["x-mlxserver"] = {"state": row.state, "reason": row.reason}
    return schema


@cache
def _read_as() -> dict[str, Schema]:
    """The schemas of those fields that a described reader reads."""
    return {name: schema_of(field.read) for field in FIELDS if field.read for name in field.names}


def _fits(value: Any, schema: Schema) -> bool:
    types: dict[str, tuple[type, ...]] = {
        "boolean": (bool,),
        "integer": (int,),
        "number": (int, float),
        "string": (str,),
        "array": (list,),
    }
    named = schema.get("type", [])
    return any(type(value) in types.get(name, ()) for name in ([named] if isinstance(named, str) else named))


def _holders(schema: Schema, parents: list[str]) -> list[Schema]:
    """The schemas that have the properties of the object at a path; an object or array has them twice."""
    types = schema.get("type", "object")
    holders = []
    if "object" in types:
        holders.append(schema)
    if "array" in types:
        holders.append(schema.setdefault("items", {"type": "object"}))
    if not parents:
        return holders
    first, *others = parents
    return [found for holder in holders for found in _holders(holder["properties"][first], others)]


def _without(row: FieldRow, names: set[str]) -> FieldRow:
    return replace(row, names=tuple(name for name in row.names if name.split("/")[0] not in names))
