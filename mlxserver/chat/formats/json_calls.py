"""Calls that are JSON objects with a name and arguments, between marks or bare.

Hermes, Qwen 2.5 and 3, Llama 3, older Mistral, Command R, Granite and many others.
"""

from __future__ import annotations

from collections.abc import Container, Generator
from dataclasses import dataclass
from typing import Any

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter, many
from mlxserver.chat.formats.json_text import read_string, read_value
from mlxserver.chat.formats.scanner import Scanner
from mlxserver.chat.formats.schemas import arguments_schema, quoted

NAME_KEYS = ("name", "tool_name", "function_name")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
ID_KEYS = ("id", "tool_call_id", "call_id")
_MAY_COME_FIRST = ("type", "id", "tool_call_id", "call_id")
"""Any other key tells that a bare object is no call."""


class BrokenCall(Exception):
    """What stands where a call should is none."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """``{"name": ..., "arguments": ...}`` between ``start`` and ``end``, several with or without a list."""

    start: str
    end: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    is_list: bool = False
    """Grammars put the calls of one answer into a list."""
    break_: str = ""
    """Between the marks and the call, where a grammar writes them."""
    dropped: tuple[str, ...] = ()
    """Marks around the content."""

    @property
    def opening(self) -> str:
        return self.start

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.start, self.end, *self.dropped)

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        marks = (self.start, *self.dropped)
        while (mark := (yield from scanner.until(marks, sink.content))) is not None:
            if mark == self.start:
                yield from self._section(scanner, sink)

    def _section(self, scanner: Scanner, sink: Sink) -> Generator[None, None, None]:
        """What stands between the marks; where that is no call it is text."""
        scanner.mark()
        num_before = sink.num_calls
        try:
            yield from read_calls(scanner, sink)
        except BrokenCall:
            if sink.num_calls == num_before:
                if scanner.is_complete or not scanner.has_ended:
                    sink.content(self.start + scanner.since_mark())
                return
        yield from scanner.closing(self.end)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        call = writer.one_of(
            json_call(writer, name, schema, self.name_key, self.arguments_key)
            for name, schema in tools.parameters.items()
        )
        front, back = writer.text(self.start + self.break_), writer.text(self.break_ + self.end)
        if self.is_list:
            calls = many(call, writer.text(", "), tools.is_parallel)
            return f"{front} {writer.text('[')} {calls} {writer.text(']')} {back}"
        return many(f"{front} {call} {back}", writer.space(), tools.is_parallel)


def json_call(
    writer: GrammarWriter,
    name: str,
    parameters: Any,
    name_key: str = "name",
    arguments_key: str = "arguments",
) -> str:
    """One call of the function ``name``, as an expression."""
    space = writer.space()
    arguments = writer.json(arguments_schema(parameters))
    parts = ["{", quoted(name_key), ":", quoted(name), ",", quoted(arguments_key), ":"]
    written = f" {space} ".join(writer.text(part) for part in parts)
    return writer.rule(f"{written} {space} {arguments} {space} {writer.text('}')}")


def read_calls(scanner: Scanner, sink: Sink) -> Generator[None, None, None]:
    """One call, or a list of them, or several with commas or space between. Raises ``BrokenCall``."""
    yield from scanner.space()
    in_list = yield from scanner.literal("[")
    while True:
        yield from scanner.space()
        yield from read_call(scanner, sink)
        yield from scanner.space()
        if not (yield from scanner.literal(",")) and (yield from scanner.peek()) != "{":
            break
    if in_list:
        yield from scanner.literal("]")


def read_call(
    scanner: Scanner, sink: Sink, known: Container[str] | None = None, is_open: bool = False
) -> Generator[None, None, None]:
    """One object. Raises ``BrokenCall`` where it is none or names no function, or none of the ``known`` ones.

    ``is_open``: its opening brace was taken already.
    """
    call = _Call(scanner, sink, known)
    if not is_open and not (yield from scanner.literal("{")):
        raise BrokenCall
    yield from call.read_object()
    call.close()


class _Call:
    """A call whose keys may come in any order; arguments are passed on once the name is known."""

    def __init__(self, scanner: Scanner, sink: Sink, known: Container[str] | None) -> None:
        self._scanner = scanner
        self._sink = sink
        self._known = known
        self._name = ""
        self._id = ""
        self._early: list[str] = []
        self._has_begun = False
        self._is_cut = False

    def read_object(self) -> Generator[None, None, None]:
        """Behind its opening brace."""
        scanner = self._scanner
        while True:
            yield from scanner.space()
            if (yield from scanner.literal("}")):
                return
            key = yield from read_string(scanner)
            yield from scanner.space()
            if key is None or not (yield from scanner.literal(":")):
                break
            yield from scanner.space()
            yield from self._value(key)
            yield from scanner.space()
            yield from scanner.literal(",")
            if self._is_cut:
                return
        if not scanner.has_ended:
            raise BrokenCall
        self._is_cut = True

    def _value(self, key: str) -> Generator[None, None, None]:
        first = yield from self._scanner.peek()
        if key in NAME_KEYS or (key in ("function", "tool") and first == '"'):
            self._name = (yield from self._string()) or self._name
            if self._known is not None and self._name not in self._known:
                raise BrokenCall
        elif key in ("function", "tool") and first == "{":
            yield from self._scanner.literal("{")
            yield from self.read_object()
        elif key in ARGUMENT_KEYS:
            yield from self._arguments(first)
        elif key in ID_KEYS and first == '"':
            self._id = (yield from self._string()) or self._id
        elif self._known is not None and not self._name and key not in _MAY_COME_FIRST:
            raise BrokenCall
        else:
            self._is_cut |= not (yield from read_value(self._scanner, lambda text: None))

    def _string(self) -> Generator[None, None, str | None]:
        text = yield from read_string(self._scanner)
        self._is_cut |= text is None and self._scanner.has_ended
        return text

    def _arguments(self, first: str) -> Generator[None, None, None]:
        if first == '"':
            self._put((yield from self._string()) or "")
        else:
            self._is_cut |= not (yield from read_value(self._scanner, self._put))

    def _put(self, text: str) -> None:
        if not self._name:
            self._early.append(text)
            return
        self._begin()
        self._sink.arguments(text)

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._sink.begin_call(self._name, self._id)

    def close(self) -> None:
        """Begins a call whose arguments never came, or came before its name."""
        if not self._name:
            raise BrokenCall
        if not self._has_begun:
            self._begin()
            self._sink.arguments("".join(self._early) or "{" + "}" * (not self._is_cut))
