"""Answers that are JSON, for a response format: a Markdown fence around them is left out."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.formats.json_text import read_value
from mlxserver.chat.formats.scanner import Scanner

_FENCE = ("```json", "```")


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    opening: str = ""
    marks: tuple[str, ...] = ()

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        yield from scanner.space()
        if (yield from scanner.literal(_FENCE[0])):
            yield from scanner.space()
        if (yield from read_value(scanner, sink.content)):
            yield from scanner.closing(_FENCE[1])

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        raise NotImplementedError("it has no calls")
