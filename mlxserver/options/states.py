"""What each used option's state asks for at start: nothing, a warning, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator

from mlxserver.options.builder import Builder
from mlxserver.options.table import Row, rows_by_name


def refusals(builder: Builder) -> Iterator[str]:
    """One line for every used option that this version cannot honour."""
    for row, source in _judged(builder):
        name = _named(row, source)
        value = builder.values[row.value_name]
        if value in row.deferred_values:
            yield f"not yet implemented: {name} {value} ({row.reason})"
        elif value in row.refused_values:
            yield f"{name} {value} is refused: {row.reason}"
        elif row.state == "deferred" and not _is_harmless(builder, row):
            yield f"not yet implemented: {name} ({row.reason})"
        elif row.state == "refused" and not _is_harmless(builder, row):
            yield f"{name} is refused: {row.reason}"


def hints(builder: Builder) -> Iterator[str]:
    """One line for every used option that has no effect."""
    for row, source in _judged(builder):
        value = builder.values[row.value_name]
        if row.state == "hint" and value not in row.accepted_values:
            yield f"{_named(row, source)} has no effect: {row.reason}"


def _named(row: Row, source: str) -> str:
    """The spelling used, or the long one and where it came from."""
    return source if source in (*row.spellings, *row.negated) else f"{row.long} (from {source})"


def _judged(builder: Builder) -> Iterator[tuple[Row, str]]:
    return ((rows_by_name()[name], source) for name, source in builder.touched.items())


def _is_harmless(builder: Builder, row: Row) -> bool:
    """The default does what is done anyway."""
    value = builder.values[row.value_name]
    return value == rows_by_name()[row.value_name].default or value in row.accepted_values
