"""Calls that are a list of JSON objects with one key each, the function's name: Apertus."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.json_text import read_string, read_value
from mlxserver.chat.formats.scanner import Scanner
from mlxserver.chat.formats.schemas import arguments_schema, quoted


@dataclass(frozen=True, slots=True)
class KeyedCalls:
    start: str
    end: str

    @property
    def opening(self) -> str:
        return self.start

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.end)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        calls = writer.one_of(
            " ".join(
                (
                    writer.text("{" + quoted(name) + ": "),
                    writer.json(arguments_schema(schema)),
                    writer.text("}"),
                )
            )
            for name, schema in tools.parameters.items()
        )
        several = many(calls, writer.text(", "), tools.is_parallel)
        return f"{writer.text(self.start + '[')} {several} {writer.text(']' + self.end)}"

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (yield from scanner.until((self.start,), sink.content)) is not None:
            scanner.mark()
            num_before = sink.num_calls
            yield from scanner.space()
            yield from scanner.literal("[")
            while (yield from self._call(scanner, sink)):
                yield from scanner.space()
                yield from scanner.literal(",")
            if sink.num_calls == num_before and (scanner.is_complete or not scanner.has_ended):
                sink.content(self.start + scanner.since_mark())
            for mark in ("]", self.end):
                yield from scanner.closing(mark)

    def _call(self, scanner: Scanner, sink: Sink) -> Generator[None, None, bool]:
        """Whether there was a whole one."""
        yield from scanner.space()
        if not (yield from scanner.literal("{")):
            return False
        yield from scanner.space()
        name = yield from read_string(scanner)
        yield from scanner.space()
        if name is None or not (yield from scanner.literal(":")):
            return False
        sink.begin_call(name)
        yield from scanner.space()
        if not (yield from read_value(scanner, sink.arguments)):
            return False
        yield from scanner.space()
        return (yield from scanner.literal("}"))
