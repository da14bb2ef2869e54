"""GPT-OSS: every message names its channel, and calls name their recipient."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.json_text import Trimmed
from mlxserver.chat.formats.scanner import Emit, Scanner

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.\-]+)")


@dataclass(frozen=True, slots=True)
class Harmony:
    """Analysis is reasoning; what a function is the recipient of are its arguments; the rest is content."""

    shows_reasoning: bool = True
    finds_calls: bool = True

    @property
    def opening(self) -> str:
        return ""

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while True:
            head, mark = yield from scanner.collect_until((_MESSAGE,))
            if mark is None:
                # an answer without any header, or one that was cut inside
                if scanner.is_complete and "<|channel|>" not in head:
                    sink.content(head.removeprefix("assistant"))
                return
            emit = self._target(head, sink)
            yield from scanner.until(_ENDS, emit)
            if scanner.has_ended and not scanner.waiting:
                return

    def _target(self, head: str, sink: Sink) -> Emit:
        recipient = _RECIPIENT.search(head)
        if recipient and self.finds_calls:
            sink.begin_call(recipient[1])
            return Trimmed(sink.arguments)
        if "analysis" in head:
            return sink.reasoning if self.shows_reasoning else _raw(head, sink)
        return sink.content


def _raw(head: str, sink: Sink) -> Emit:
    """Without a reasoning format the header stays in the content."""
    sink.content(head.removeprefix("assistant") + _MESSAGE)
    return sink.content
