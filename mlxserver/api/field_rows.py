"""The manifest of request and response fields, ``fields.json``: llama-server's and our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from mlxserver.options.table import compat_text

TABLES = ("llama-server/b10621/fields.json", "mlxserver/fields.json")

Place = Literal["body", "query", "path", "header", "response", "event", "shared"]
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field: of a request of ``api``, of its answer, of a stream's events, or of a shared object.

    A name is a path: ``a/b`` is ``b`` within ``a``, or within each item of ``a``; the empty one is the whole.
    """

    names: tuple[str, ...]
    api: str
    place: Place
    state: str
    reason: str
    required: bool
    ref: str
    """The schema, by its name, that the value has, or that its items have."""
    schema: Schema
    """Whatever else the row says, in JSON Schema's words."""


@cache
def field_rows() -> tuple[FieldRow, ...]:
    return tuple(_row(**row) for table in TABLES for row in json.loads(compat_text(table)))


def rows_of(api: str, place: Place) -> Iterator[FieldRow]:
    return (row for row in field_rows() if (row.api, row.place) == (api, place))


def _row(names: list[str], api: str, state: str, **others: Any) -> FieldRow:
    place, reason = others.pop("in", "body"), others.pop("reason", "")
    required, ref = others.pop("required", False), others.pop("ref", "")
    return FieldRow(tuple(names), api, place, state, reason, required, ref, others)
