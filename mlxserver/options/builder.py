"""Collects the values that the sources give, each later one over the earlier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxserver.options.convert import IGNORED
from mlxserver.options.exits import exit_if_immediate
from mlxserver.options.notices import Notices
from mlxserver.options.table import Row, all_rows, rows_by_name


class Builder:
    """``given`` names the options used, with the spelling or variable that did it.

    ``touched`` is ``given`` with every bundle replaced by the options that it sets: what has to be
    judged by its state.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {row.name: row.default for row in all_rows() if not row.target}
        self.given: dict[str, str] = {}
        self.touched: dict[str, str] = {}
        self.notices = Notices()

    def use(self, row: Row, value: Any, source: str) -> None:
        """Takes ``value``, already of the option's type."""
        exit_if_immediate(row)
        if row.deprecated:
            self.notices.warning(f"DEPRECATED: {row.deprecated}")
        if value is not IGNORED:
            self._store(row, value)
        self.given[row.name] = source
        self._touch(row, source)

    def _store(self, row: Row, value: Any) -> None:
        EFFECTS.get(row.name, _collect)(self, row, value)
        for name, implied in self._implied(row).items():
            _collect(self, rows_by_name()[name], implied)

    def _implied(self, row: Row) -> dict[str, Any]:
        on = self.values.get(row.name) is not False
        return dict(row.sets.get("on" if on else "off", {}))

    def _touch(self, row: Row, source: str) -> None:
        if row.sets and row.state == "honoured":
            for name in self._implied(row):
                self.touched[name] = source
        else:
            self.touched[row.name] = source


def _collect(builder: Builder, row: Row, value: Any) -> None:
    values, name = builder.values, row.value_name
    match rows_by_name()[name].collect:
        case "append":
            values[name] = (*values[name], value)
        case "extend":
            values[name] = (*values[name], *value)
        case "union":
            values[name] = tuple(sorted({*values[name], *value}))
        case "merge":
            values[name] = {**values[name], **value}
        case "replace":
            values[name] = value


def _dry_sequence_breaker(builder: Builder, row: Row, value: str) -> None:
    """The first use drops the default breakers; ``none`` drops all."""
    kept = builder.values[row.name] if row.name in builder.given else ()
    builder.values[row.name] = () if value == "none" else (*kept, value)


def _template_kwarg(name: str, to_kwarg: Callable[[Any], Any]) -> Callable[[Builder, Row, Any], None]:
    """An option that also sets the template kwarg ``name``; None leaves it, ``...`` removes it."""

    def effect(builder: Builder, row: Row, value: Any) -> None:
        builder.values[row.name] = value
        kwarg = to_kwarg(value)
        kwargs = dict(builder.values["chat_template_kwargs"])
        if kwarg is ...:
            kwargs.pop(name, None)
        elif kwarg is not None:
            kwargs[name] = kwarg
        builder.values["chat_template_kwargs"] = kwargs

    return effect


EFFECTS: dict[str, Callable[[Builder, Row, Any], None]] = {
    "dry_sequence_breaker": _dry_sequence_breaker,
    "reasoning": _template_kwarg("enable_thinking", {"on": True, "off": False}.get),
    "reasoning_effort": _template_kwarg("reasoning_effort", lambda x: ... if x == "default" else x),
    "reasoning_preserve": _template_kwarg("preserve_reasoning", lambda x: x),
}
