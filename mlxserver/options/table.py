"""The option tables: llama-server's own options (b10621) and the few of mlxserver beyond them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from mlxserver.options.values import to_float32

Form = Literal["flag", "switch", "int", "string", "pair"]
State = Literal["honoured", "hint", "refused", "deferred"]

COMPATIBLE_BUILD = 10621
"""The llama-server build whose options the first table lists."""

LLAMA_SERVER_TABLE = "llama-server/b10621/options.json"
OWN_TABLE = "mlxserver/options.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One option.

    ``form`` says what follows a spelling: nothing (``flag``, and ``switch``, which can be negated),
    one integer, one string, or two strings. ``type`` names how a string is read
    (``mlxserver.options.convert``). ``target`` is the option whose value is set instead of the own one,
    ``sets`` further values by ``on`` and ``off``.

    ``state``: ``honoured``; ``hint`` (accepted, no effect, one warning line); ``refused``; ``deferred``
    (refused as not yet implemented). The latter three let the default and ``accepted_values`` pass;
    ``deferred_values`` and ``refused_values`` are refused whatever the state is.
    """

    name: str
    spellings: tuple[str, ...]
    negated: tuple[str, ...] = ()
    env: str | None = None
    form: Form
    type: str = "str"
    hint: str = ""
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None
    not_zero: bool = False
    error: str = ""
    collect: Literal["replace", "append", "extend", "union", "merge"] = "replace"
    target: str | None = None
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drop_empty: bool = False
    deprecated: str = ""
    removed: str = ""
    default: Any = None
    shown: str = ""
    section: str
    group: str
    description: str
    state: State
    accepted_values: tuple[Any, ...] = ()
    deferred_values: tuple[Any, ...] = ()
    refused_values: tuple[Any, ...] = ()
    reason: str = ""
    tests: tuple[str, ...] = ()
    """Where the behaviour is tested, for options whose tests are not those of the parser."""

    @property
    def value_name(self) -> str:
        """The option that holds the value."""
        return self.target or self.name

    @property
    def long(self) -> str:
        """The first long spelling, the one that messages use."""
        return next(spelling for spelling in self.spellings if spelling.startswith("--"))

    @property
    def negated_env(self) -> str | None:
        """The variable whose mere presence means off."""
        if not self.env or not self.negated or not self.env.startswith("LLAMA_ARG_"):
            return None
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)


def frozen(value: Any) -> Any:
    """JSON lists become tuples; floats become what C's float holds."""
    if isinstance(value, list):
        return tuple(frozen(item) for item in value)
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    return to_float32(value) if isinstance(value, float) else value


def compat_text(name: str) -> str:
    """A file of compat/, from the installed package or from the checkout beside it."""
    package = resources.files("mlxserver")
    installed = package.joinpath("compat", *name.split("/"))
    if installed.is_file():
        return installed.read_text(encoding="utf-8")
    return Path(str(package)).parent.joinpath("compat", name).read_text(encoding="utf-8")


def read_table(name: str) -> tuple[Row, ...]:
    rows: list[dict[str, Any]] = json.loads(compat_text(name))
    return tuple(Row(**{key: frozen(value) for key, value in row.items()}) for row in rows)


@cache
def llama_server_rows() -> tuple[Row, ...]:
    return read_table(LLAMA_SERVER_TABLE)


@cache
def own_rows() -> tuple[Row, ...]:
    return read_table(OWN_TABLE)


@cache
def all_rows() -> tuple[Row, ...]:
    """In the order in which environment variables are read."""
    return llama_server_rows() + own_rows()


@cache
def rows_by_name() -> Mapping[str, Row]:
    return {row.name: row for row in all_rows()}


@cache
def rows_by_spelling() -> Mapping[str, tuple[Row, bool]]:
    """Each spelling with its row and whether it is the positive form."""
    found: dict[str, tuple[Row, bool]] = {}
    for row in all_rows():
        found.update(dict.fromkeys(row.spellings, (row, True)))
        found.update(dict.fromkeys(row.negated, (row, False)))
    return found


def spellings_of(rows: Sequence[Row]) -> list[str]:
    """All spellings, negated ones too, in the order of the table."""
    return [spelling for row in rows for spelling in (*row.spellings, *row.negated)]
