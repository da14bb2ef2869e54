"""Answers whose content stands between marks, and that are not searched for calls."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from mlxserver.chat.formats.calls import Sink, Tools
from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.formats.scanner import Scanner


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """Everything but ``dropped`` is content."""

    dropped: tuple[str, ...]
    opening: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        return self.dropped

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        while (yield from scanner.until(self.dropped, sink.content)) is not None:
            pass

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        raise NotImplementedError("it has no calls")
