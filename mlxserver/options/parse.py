"""The command line, token by token, as llama-server reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxserver.options.builder import Builder
from mlxserver.options.convert import to_int, to_pair, to_value
from mlxserver.options.environment import is_set
from mlxserver.options.exits import Exit
from mlxserver.options.help import entry
from mlxserver.options.table import Row, rows_by_spelling
from mlxserver.options.values import BadValue

REPEATABLE = frozenset({"--spec-type"})
LOAD_MODES = frozenset({"--mlock", "--mmap", "--no-mmap", "-dio", "--direct-io", "-ndio", "--no-direct-io"})


def parse_argv(builder: Builder, argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """``argv`` without the program's name. Raises ``Exit`` on the first error."""
    tokens = iter(argv)
    seen: set[str] = set()
    for token in tokens:
        spelling = token.replace("_", "-") if token.startswith("--") else token
        row, is_positive = _look_up(builder, spelling)
        _warn(builder, row, spelling, seen, environ)
        seen.add(spelling)
        try:
            builder.use(row, _value(builder, row, is_positive, tokens), spelling)
        except BadValue as error:
            raise _usage_error(builder, row, spelling, error) from None
    if seen & {"-lm", "--load-mode"} and seen & LOAD_MODES:
        builder.notices.warning(
            "DEPRECATED: `--load-mode` and `--mlock`/`--mmap`/`--direct-io` should not be combined; "
            "only the last flag on the command line will take effect"
        )


def _look_up(builder: Builder, spelling: str) -> tuple[Row, bool]:
    found = rows_by_spelling().get(spelling)
    if found is None:
        raise Exit(1, stderr=builder.notices.lines() + f"error: invalid argument: {spelling}\n")
    return found


def _warn(builder: Builder, row: Row, spelling: str, seen: set[str], environ: Mapping[str, str]) -> None:
    if spelling in seen and spelling not in REPEATABLE:
        builder.notices.warning(
            f"DEPRECATED: argument '{spelling}' specified multiple times, "
            "use comma-separated values instead (only last value will be used)"
        )
    if is_set(row, environ):
        builder.notices.plain(
            f"warn: {row.env} environment variable is set, "
            f"but will be overwritten by command line argument {spelling}"
        )


def _value(builder: Builder, row: Row, is_positive: bool, tokens: Iterator[str]) -> Any:
    if row.form in ("flag", "switch"):
        return is_positive
    first = _next(tokens)
    if row.form == "int":
        return to_int(row, first)
    if row.form == "pair":
        return to_pair(row, first, _next(tokens))
    return to_value(row, first, builder.notices)


def _next(tokens: Iterator[str]) -> str:
    """The next token, whatever it looks like."""
    for token in tokens:
        return token
    raise BadValue("expected value for argument")


def _usage_error(builder: Builder, row: Row, spelling: str, error: BadValue) -> Exit:
    text = (
        f'error while handling argument "{spelling}": {error}\n\n'
        f"usage:\n{entry(row)}\n\nto show complete usage, run with -h\n"
    )
    return Exit(1, stderr=builder.notices.lines() + text)
