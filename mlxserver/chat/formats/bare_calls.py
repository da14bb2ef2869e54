"""Calls without any mark: a JSON object that names a known function."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.json_calls import BrokenCall, json_call, read_call
from mlxserver.chat.formats.scanner import Scanner

_TAG = "<|python_tag|>"


@dataclass(frozen=True, slots=True)
class BareCalls:
    """Llama 3 and the form for templates that have none of their own."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    opening: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return (_TAG,)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        call = writer.one_of(
            json_call(writer, name, schema, self.name_key, self.arguments_key)
            for name, schema in tools.parameters.items()
        )
        return many(call, writer.text("; "), tools.is_parallel)

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (mark := (yield from scanner.until((_TAG, "{"), sink.content))) is not None:
            if mark == _TAG:
                continue
            scanner.mark()
            try:
                yield from read_call(scanner, sink, tools.parameters, is_open=True)
            except BrokenCall:
                if scanner.is_complete or not scanner.has_ended:
                    sink.content(mark + scanner.since_mark())
                continue
            yield from self._between(scanner)

    def _between(self, scanner: Scanner) -> Generator[None, None, None]:
        yield from scanner.space()
        yield from scanner.any_of((";", ","))
        yield from scanner.space()
