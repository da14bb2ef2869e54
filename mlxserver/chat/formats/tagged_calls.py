"""Calls whose arguments stand between tags of their own, one by one.

Qwen3-Coder, Seed-OSS, GLM 4.5, MiniMax M2, DeepSeek V3.2, MiniCPM.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.json_calls import BrokenCall
from mlxserver.chat.formats.scanner import Scanner
from mlxserver.chat.formats.schemas import is_string, required, string_pattern, string_values


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A call: its name in a tag, then a tag for each argument, then ``close``."""

    start: str
    end: str
    name: tuple[str, str]
    key: tuple[str, str]
    value_end: str
    close: str = ""
    value_start: str = ""
    """Between the end of the key's tag and the value."""
    literal_key_end: str = ""
    """Ends the key's tag where the value is text whatever its schema says."""
    pads_values: bool = False
    """A line break on either side of a value is not part of it."""
    holds_several: bool = False
    """More than one call between ``start`` and ``end``."""
    break_: str = "\n"
    """Between tags, where a grammar writes them."""

    @property
    def opening(self) -> str:
        return self.start or self.name[0]

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.end)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        calls = writer.one_of(self._call_of(writer, tools, name) for name in tools.parameters)
        front = writer.text(self.start + self.break_ if self.start and self.name[0] else self.start)
        back = writer.text(self.break_ + self.end if self.end and self.close else self.end)
        if self.holds_several:
            return f"{front} {many(calls, writer.text(self.break_), tools.is_parallel)} {back}"
        return many(f"{front} {calls} {back}", writer.space(), tools.is_parallel)

    def _call_of(self, writer: GrammarWriter, tools: Tools, name: str) -> str:
        needed = required(tools.parameters[name])
        parts = [writer.text(self.name[0] + name + self.name[1] + self.break_ * bool(self.name[0]))]
        for key, schema in tools.properties(name).items():
            argument = self._argument_of(writer, key, schema)
            parts.append(argument if key in needed else f"({argument})?")
        parts.append(writer.text(self.close))
        return writer.rule(" ".join(parts))

    def _argument_of(self, writer: GrammarWriter, key: str, schema: Any) -> str:
        pad = "\n" * self.pads_values
        end = pad + self.value_end
        key_end = self.literal_key_end if self.literal_key_end and is_string(schema) else self.key[1]
        gap = self.break_ * bool(self.value_start)
        front = writer.text(self.key[0] + key + key_end + gap + self.value_start + pad)
        if not is_string(schema):
            value = f"{writer.json(schema)} {writer.text(end)}"
        elif (values := string_values(schema)) is not None:
            value = f"{writer.one_of(writer.text(text) for text in values)} {writer.text(end)}"
        else:
            value = writer.text_until(end, string_pattern(schema))
        return f"{front} {value} {writer.text(self.break_)}"

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        openings = tuple(mark for mark in (self.start, self.name[0]) if mark)
        while (opening := (yield from scanner.until(openings, sink.content))) is not None:
            scanner.mark()
            yield from self._section(scanner, sink, tools, opening)
            yield from scanner.space()

    def _section(
        self, scanner: Scanner, sink: Sink, tools: Tools, opening: str
    ) -> Generator[None, None, None]:
        num_before = sink.num_calls
        yield from scanner.space()
        needs_name = opening == self.start and bool(self.name[0])
        try:
            while True:
                if needs_name and not (yield from scanner.literal(self.name[0])):
                    raise BrokenCall
                if (yield from self._call(scanner, sink, tools)):
                    return
                yield from scanner.space()
                needs_name = True
                if not self.holds_several or (yield from scanner.peek()) != self.name[0][:1]:
                    break
                if self.end and (yield from scanner.literal(self.end)):
                    return
            yield from scanner.closing(self.end)
        except BrokenCall:
            if sink.num_calls == num_before and scanner.is_complete:
                sink.content(opening + scanner.since_mark())

    def _call(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, bool]:
        """Whether the end of the section was taken too."""
        ends = tuple({mark for mark in (self.name[1], self.key[0], self.close, self.end) if mark})
        name, mark = yield from scanner.collect_until(ends)
        name = name.strip()
        if mark is None or not name:
            raise BrokenCall
        sink.begin_call(name)
        arguments = _Arguments(self, scanner, sink, tools.properties(name))
        return (yield from arguments.read(mark))


class _Arguments:
    def __init__(self, tags: TaggedCalls, scanner: Scanner, sink: Sink, properties: dict[str, Any]) -> None:
        self._tags = tags
        self._scanner = scanner
        self._sink = sink
        self._properties = properties
        self._separator = ""
        self._quote = ""

    def read(self, mark: str | None) -> Generator[None, None, bool]:
        """``mark``: the one that ended the name. Whether the end of the section was taken."""
        tags, scanner = self._tags, self._scanner
        self._sink.arguments("{")
        marks = tuple(m for m in (tags.key[0], tags.close, tags.end) if m)
        if mark == tags.name[1] and mark not in marks:
            mark = yield from scanner.until(marks, lambda text: None)
        while mark == tags.key[0]:
            if not (yield from self._argument()):
                return True
            mark = yield from scanner.until(marks, lambda text: None)
        if mark is None:
            return True
        self._sink.arguments("}")
        return mark == tags.end

    def _argument(self) -> Generator[None, None, bool]:
        """Whether it was whole."""
        tags, scanner = self._tags, self._scanner
        ends = tuple(end for end in (tags.literal_key_end, tags.key[1]) if end)
        key, end = yield from scanner.collect_until(ends)
        if end is None:
            return False
        if tags.value_start:
            yield from scanner.space()
            yield from scanner.literal(tags.value_start)
        if tags.pads_values:
            yield from scanner.literal("\n")
        key = key.strip()
        self._sink.arguments(self._separator + json.dumps(key, ensure_ascii=False) + ":")
        self._separator = ","
        schema = self._properties.get(key)
        if end == tags.literal_key_end or (schema is not None and is_string(schema)):
            return (yield from self._text())
        return (yield from self._value(schema))

    def _value_ends(self) -> tuple[str, ...]:
        end = self._tags.value_end
        return ("\n" + end, end) if self._tags.pads_values else (end,)

    def _text(self) -> Generator[None, None, bool]:
        self._quote = '"'
        if (yield from self._scanner.until(self._value_ends(), self._escaped)) is None:
            return False
        self._sink.arguments(self._quote + '"')
        return True

    def _escaped(self, text: str) -> None:
        quote, self._quote = self._quote, ""
        self._sink.arguments(quote + json.dumps(text, ensure_ascii=False)[1:-1])

    def _value(self, schema: Any) -> Generator[None, None, bool]:
        text, end = yield from self._scanner.collect_until(self._value_ends())
        if end is None:
            self._sink.arguments(text.strip())
            return False
        self._sink.arguments(as_json(text))
        return True


def as_json(text: str) -> str:
    """JSON and Python literals as JSON; anything else as a string."""
    bare = text.strip()
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return json.dumps(_python_value(text), ensure_ascii=False)
    return bare


def _python_value(text: str) -> Any:
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value
