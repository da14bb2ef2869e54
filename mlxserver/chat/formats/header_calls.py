"""Calls whose name stands before the JSON of their arguments.

Mistral, DeepSeek V3 and R1, Kimi K2, Functionary, Solar.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.json_calls import BrokenCall, read_calls
from mlxserver.chat.formats.json_text import read_value
from mlxserver.chat.formats.scanner import SPACE, Scanner
from mlxserver.chat.formats.schemas import arguments_schema

_FENCE = "```"


@dataclass(frozen=True, slots=True)
class HeaderCalls:
    """``start`` [``prefix``] name [``id_mark`` id] ``mark`` {...} ``end``, several in a section or not."""

    start: str
    marks_of_name: tuple[str, ...]
    """Any of these ends the name; grammars use the first one."""
    end: str = ""
    prefix: str = ""
    id_mark: str = ""
    section: tuple[str, str] = ("", "")
    id_size: int = 9
    """How long the ids are that a grammar writes."""
    takes_json: bool = False
    """A list of JSON calls may follow ``start`` instead."""
    id_first: bool = False
    """The id stands before the name."""

    @property
    def opening(self) -> str:
        return self.section[0] or self.start

    @property
    def marks(self) -> tuple[str, ...]:
        fence = tuple(mark for mark in self.marks_of_name if _FENCE not in mark)
        return (self.start, self.end, self.id_mark, *self.section, *fence)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        calls = writer.one_of(self._call_of(writer, tools, name) for name in tools.parameters)
        several = many(calls, writer.space(), tools.is_parallel)
        front, back = (writer.text(mark) for mark in self.section)
        return f"{front} {several} {back}" if self.section[0] else several

    def _call_of(self, writer: GrammarWriter, tools: Tools, name: str) -> str:
        arguments = writer.json(arguments_schema(tools.parameters[name]))
        tail = f"\n{_FENCE}{self.end}" if _FENCE in self.marks_of_name[0] else self.end
        return f"{self.header(writer, name)} {arguments} {writer.text(tail)}"

    def header(self, writer: GrammarWriter, name: str) -> str:
        """All that stands before the arguments."""
        if not self.id_mark:
            return writer.text(self.start + self.prefix + name + self.marks_of_name[0])
        id = writer.rule(f"/[a-zA-Z0-9]{{{self.id_size}}}/")
        first, second = (id, writer.text(name)) if self.id_first else (writer.text(name), id)
        return (
            f"{writer.text(self.start)} {first} {writer.text(self.id_mark)} "
            f"{second} {writer.text(self.marks_of_name[0])}"
        )

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        openings = tuple(mark for mark in (self.section[0], self.start) if mark)
        while (opening := (yield from scanner.until(openings, sink.content))) is not None:
            scanner.mark()
            yield from scanner.space()
            if opening != self.start and not (yield from scanner.literal(self.start)):
                continue
            yield from self._calls(scanner, sink, opening)

    def _calls(self, scanner: Scanner, sink: Sink, opening: str) -> Generator[None, None, None]:
        while True:
            try:
                yield from self._call(scanner, sink)
            except BrokenCall:
                if scanner.is_complete:
                    sink.content(opening + scanner.since_mark())
                return
            yield from scanner.space()
            scanner.mark()
            opening = ""
            if not (yield from scanner.literal(self.start)):
                break
        yield from scanner.closing(self.section[1])

    def _call(self, scanner: Scanner, sink: Sink) -> Generator[None, None, None]:
        yield from scanner.space()
        if self.takes_json and (yield from scanner.peek()) in ("[", "{"):
            yield from read_calls(scanner, sink)
            return
        name, id = yield from self._header(scanner)
        yield from scanner.space()
        if (yield from scanner.peek()) != "{":
            if not scanner.has_ended:
                raise BrokenCall
            sink.begin_call(name, id)
            sink.arguments("{")
            return
        sink.begin_call(name, id)
        yield from read_value(scanner, sink.arguments)
        yield from self._tail(scanner)

    def _header(self, scanner: Scanner) -> Generator[None, None, tuple[str, str]]:
        """(name, id). Raises ``BrokenCall`` where the text ends before the arguments."""
        if self.prefix:
            yield from scanner.literal(self.prefix)
        marks = (*self.marks_of_name, self.id_mark) if self.id_mark else self.marks_of_name
        first, mark = yield from scanner.collect_until(marks)
        second = ""
        if mark is not None and mark == self.id_mark:
            second, mark = yield from scanner.collect_until(self.marks_of_name)
        if mark is None:
            raise BrokenCall
        name, id = (second, first) if self.id_first else (first, second)
        return self.name_and_id(name.strip(), id.strip())

    def name_and_id(self, name: str, id: str) -> tuple[str, str]:
        return name, id

    def _tail(self, scanner: Scanner) -> Generator[None, None, None]:
        for mark in (_FENCE, self.end):
            yield from scanner.closing(mark)


@dataclass(frozen=True, slots=True)
class KimiCalls(HeaderCalls):
    """The header is ``functions.NAME:INDEX``, which is the call's id too."""

    def name_and_id(self, name: str, id: str) -> tuple[str, str]:
        function = name.removeprefix("functions.").rpartition(":")
        return (function[0] or function[2]).strip(SPACE), name

    def header(self, writer: GrammarWriter, name: str) -> str:
        number = writer.rule("/[0-9]{1,2}/")
        front = writer.text(f"{self.start}functions.{name}:")
        return f"{front} {number} {writer.text(self.marks_of_name[0])}"
