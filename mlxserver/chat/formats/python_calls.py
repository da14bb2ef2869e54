"""Calls written as a list of Python calls: LFM2."""

from __future__ import annotations

import ast
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.scanner import Scanner
from mlxserver.chat.formats.schemas import required


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """``start`` [name(key=value, ...), ...] ``end``; a call's arguments are passed on when it is whole."""

    start: str
    end: str

    @property
    def opening(self) -> str:
        return self.start

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.end)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        calls = writer.one_of(_call_of(writer, tools, name) for name in tools.parameters)
        several = many(calls, writer.text(", "), tools.is_parallel)
        return f"{writer.text(self.start + '[')} {several} {writer.text(']' + self.end)}"

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (yield from scanner.until((self.start,), sink.content)) is not None:
            text, end = yield from scanner.collect_until((self.end,))
            calls = parse_calls(text)
            for name, arguments in calls:
                sink.begin_call(name)
                sink.arguments(json.dumps(arguments, ensure_ascii=False, separators=(",", ":")))
            if not calls and scanner.is_complete:
                sink.content(self.start + text + (end or ""))
            yield from scanner.space()


def parse_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Empty where ``text`` is no list of calls with named arguments."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        items = body.elts if isinstance(body, ast.List) else [body]
        return [_call(item) for item in items]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return []


def _call_of(writer: GrammarWriter, tools: Tools, name: str) -> str:
    """Values as JSON; what must be there comes first, so that commas know their place."""
    needed = required(tools.parameters[name])
    written = {
        key: f"{writer.text(key + '=')} {writer.json(schema)}"
        for key, schema in tools.properties(name).items()
    }
    comma = writer.text(", ")
    first = f" {comma} ".join(value for key, value in written.items() if key in needed)
    others = [value for key, value in written.items() if key not in needed]
    if first:
        first += "".join(f" ({comma} {value})?" for value in others)
    elif others:
        first = f"{writer.one_of(others)}?"
    return writer.rule(f"{writer.text(name + '(')} {first} {writer.text(')')}")


class _JsonNames(ast.NodeTransformer):
    """Values may be written as in JSON."""

    _values = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._values[node.id]) if node.id in self._values else node


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError
        arguments[keyword.arg] = ast.literal_eval(_JsonNames().visit(keyword.value))
    json.dumps(arguments)
    return ast.unparse(node.func), arguments
