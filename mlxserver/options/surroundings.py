"""Environment variables that llama-server reads and that are no options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlxserver.options.table import State, compat_text

ENVIRONMENT_TABLE = "llama-server/b10621/environment.json"


@dataclass(frozen=True, slots=True)
class Variable:
    """``values``: those that the state speaks of; empty for any."""

    name: str
    state: State
    meaning: str
    values: tuple[str, ...] = ()
    reason: str = ""

    def is_in(self, environ: Mapping[str, str]) -> bool:
        return self.name in environ and (not self.values or environ[self.name] in self.values)


@cache
def variables() -> tuple[Variable, ...]:
    rows: list[dict[str, Any]] = json.loads(compat_text(ENVIRONMENT_TABLE))
    return tuple(Variable(**{**row, "values": tuple(row.get("values", ()))}) for row in rows)


def environment_refusals(environ: Mapping[str, str]) -> list[str]:
    return [
        f"not yet implemented: {variable.name} ({variable.reason})"
        for variable in variables()
        if variable.state in ("deferred", "refused") and variable.is_in(environ)
    ]


def environment_hints(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{variable.name} has no effect: {variable.reason}"
        for variable in variables()
        if variable.state == "hint" and variable.is_in(environ)
    ]
