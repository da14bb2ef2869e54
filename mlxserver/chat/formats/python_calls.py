"""Calls written as a list of Python calls: LFM2."""

from __future__ import annotations

import ast
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.scanner import Scanner


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """``start`` [name(key=value, ...), ...] ``end``; a call's arguments are passed on when it is whole."""

    start: str
    end: str

    @property
    def opening(self) -> str:
        return self.start

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (yield from scanner.until((self.start,), sink.content)) is not None:
            text, end = yield from scanner.collect_until((self.end,))
            calls = parse_calls(text)
            for name, arguments in calls:
                sink.begin_call(name)
                sink.arguments(json.dumps(arguments, ensure_ascii=False))
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
