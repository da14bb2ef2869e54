"""GPT-OSS: every message names its channel, and calls name their recipient."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.formats.json_text import Trimmed
from mlxserver.chat.formats.scanner import Emit, Scanner
from mlxserver.chat.formats.schemas import arguments_schema

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")


@dataclass(frozen=True, slots=True)
class Harmony:
    """Analysis is reasoning; what a function is the recipient of are its arguments; the rest is content."""

    finds_calls: bool = True

    @property
    def opening(self) -> str:
        return ""

    @property
    def marks(self) -> tuple[str, ...]:
        return ("<|start|>", "<|channel|>", "<|constrain|>", _MESSAGE, *_ENDS)

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        """Behind ``<|start|>assistant``: at most one analysis, then a call."""
        thought = f"{writer.text('<|channel|>analysis' + _MESSAGE)} {writer.text_until('<|end|>')}"
        again = writer.text("<|start|>assistant")
        calls = writer.one_of(self._call_of(writer, tools, name) for name in tools.parameters)
        return f"({thought} {again})? {calls}"

    def _call_of(self, writer: GrammarWriter, tools: Tools, name: str) -> str:
        to, channel = f" to=functions.{name}", "<|channel|>commentary"
        heads = writer.one_of(writer.text(text) for text in (to + channel, channel + to))
        json_mark = writer.one_of(writer.text(text) for text in (" json", " <|constrain|>json"))
        arguments = writer.json(arguments_schema(tools.parameters[name]))
        return writer.rule(f"{heads} {json_mark}? {writer.text(_MESSAGE)} {arguments}")

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while True:
            head, mark = yield from scanner.collect_until((_MESSAGE,))
            if mark is None:
                # an answer without any header, or one that was cut inside
                if scanner.is_complete and "<|channel|>" not in head:
                    sink.content(head.removeprefix("assistant"))
                return
            emit = self._target(head, sink, tools.shows_reasoning)
            yield from scanner.until(_ENDS, emit)
            if scanner.has_ended and not scanner.waiting:
                return

    def _target(self, head: str, sink: Sink, shows_reasoning: bool) -> Emit:
        recipient = _RECIPIENT.search(head)
        if recipient and self.finds_calls:
            sink.begin_call(recipient[1])
            return Trimmed(sink.arguments)
        if "analysis" in head:
            return sink.reasoning if shows_reasoning else _raw(head, sink)
        return sink.content


def _raw(head: str, sink: Sink) -> Emit:
    """Without a reasoning format the header stays in the content."""
    sink.content(head.removeprefix("assistant") + _MESSAGE)
    return sink.content
