"""Calls of Gemma 4 and FunctionGemma: ``call:NAME{key:value}``, strings between marks of their own."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.gemma_grammar import ValueGrammar
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.scanner import SPACE, Scanner

_PREFIX = "call:"


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """``quote`` stands on both sides of a string."""

    start: str
    end: str
    quote: str

    @property
    def opening(self) -> str:
        return self.start

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.end, self.quote)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        values = ValueGrammar(writer, self.quote)
        calls = writer.one_of(
            f"{writer.text(self.start + _PREFIX + name)} {values.object(schema)} {writer.text(self.end)}"
            for name, schema in tools.parameters.items()
        )
        return many(calls, "", tools.is_parallel)

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (yield from scanner.until((self.start,), sink.content)) is not None:
            scanner.mark()
            yield from scanner.space()
            yield from scanner.literal(_PREFIX)
            name, brace = yield from scanner.collect_until(("{", self.end))
            if brace != "{" or not name.strip():
                if scanner.is_complete:
                    sink.content(self.start + scanner.since_mark())
                continue
            sink.begin_call(name.strip())
            yield from _Values(self.quote, scanner, sink).read_object()
            yield from scanner.closing(self.end)


class _Values:
    """Passes values on as JSON; each method says whether its value was whole."""

    def __init__(self, quote: str, scanner: Scanner, sink: Sink) -> None:
        self._quote = quote
        self._scanner = scanner
        self._put = sink.arguments

    def read_object(self) -> Generator[None, None, bool]:
        """Behind its opening brace."""
        self._put("{")
        separator = ""
        while True:
            yield from self._scanner.space()
            if (yield from self._scanner.literal("}")):
                self._put("}")
                return True
            key, colon = yield from self._key()
            if not colon:
                return False
            self._put(separator + json.dumps(key, ensure_ascii=False) + ":")
            separator = ","
            if not (yield from self._value()):
                return False
            yield from self._scanner.space()
            yield from self._scanner.literal(",")

    def _key(self) -> Generator[None, None, tuple[str, bool]]:
        if (yield from self._scanner.literal(self._quote)):
            key, _ = yield from self._scanner.collect_until((self._quote,))
            yield from self._scanner.space()
            return key, (yield from self._scanner.literal(":"))
        key, colon = yield from self._scanner.collect_until((":",))
        return key.strip().strip('"'), colon is not None

    def _value(self) -> Generator[None, None, bool]:
        scanner = self._scanner
        yield from scanner.space()
        if (yield from scanner.literal(self._quote)):
            self._put('"')
            whole = (yield from scanner.until((self._quote,), self._escaped)) is not None
            self._put('"' * whole)
            return whole
        if (yield from scanner.literal("{")):
            return (yield from self.read_object())
        if (yield from scanner.literal("[")):
            return (yield from self._list())
        return (yield from self._scalar())

    def _list(self) -> Generator[None, None, bool]:
        self._put("[")
        separator = ""
        while True:
            yield from self._scanner.space()
            if (yield from self._scanner.literal("]")):
                self._put("]")
                return True
            self._put(separator)
            separator = ","
            if not (yield from self._value()):
                return False
            yield from self._scanner.space()
            yield from self._scanner.literal(",")

    def _scalar(self) -> Generator[None, None, bool]:
        text = ""
        while (char := (yield from self._scanner.peek())) and char not in ",}]" + SPACE:
            text += self._scanner.take(1)
        if not char:
            self._put(text)
            return False
        self._put(_scalar_json(text))
        return True

    def _escaped(self, text: str) -> None:
        self._put(json.dumps(text, ensure_ascii=False)[1:-1])


def _scalar_json(text: str) -> str:
    """A number or a word of JSON; nothing is null, anything else a string."""
    named = {"": "null", "None": "null", "True": "true", "False": "false"}
    if text in named:
        return named[text]
    try:
        json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    return text
