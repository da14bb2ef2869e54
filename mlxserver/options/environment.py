"""Options from environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlxserver.options.builder import Builder
from mlxserver.options.convert import IGNORED, to_int, to_value
from mlxserver.options.exits import Exit
from mlxserver.options.table import Row, all_rows
from mlxserver.options.values import TRUE_WORDS, BadValue, bool_word


def is_set(row: Row, environ: Mapping[str, str]) -> bool:
    """Whether a variable of the option exists, its negated form included."""
    return any(name is not None and name in environ for name in (row.env, row.negated_env))


def parse_environment(builder: Builder, environ: Mapping[str, str]) -> None:
    for row in all_rows():
        if not is_set(row, environ):
            continue
        is_negated = row.negated_env is not None and row.negated_env in environ
        source = (row.negated_env if is_negated else row.env) or ""
        try:
            value = False if is_negated else _value(builder, row, environ[source])
            if value is not IGNORED:
                builder.use(row, value, source)
        except BadValue as error:
            text = f'error while handling environment variable "{row.env}": {error}\n\n\n'
            raise Exit(1, stderr=builder.notices.lines() + text) from None


def _value(builder: Builder, row: Row, text: str) -> Any:
    """A plain flag needs a true word; any other word leaves it as it is."""
    match row.form:
        case "flag":
            return True if text in TRUE_WORDS else IGNORED
        case "switch":
            return bool_word(text)
        case "int":
            return to_int(row, text)
    return to_value(row, text, builder.notices)


def shows_slot_texts(environ: Mapping[str, str]) -> bool:
    """``LLAMA_SERVER_SLOTS_DEBUG``: a number other than 0 lets ``/slots`` show texts and all settings."""
    digits = re.match(r"\s*[+-]?\d+", environ.get("LLAMA_SERVER_SLOTS_DEBUG", ""))
    return digits is not None and int(digits[0]) != 0
