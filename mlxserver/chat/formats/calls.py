"""What every format of tool calls builds on: the tools, the sink of what was found, the protocol."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlxserver.chat.answer_deltas import AnswerDelta, CallArguments, CallBegin, Content, Reasoning
from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.formats.scanner import Scanner
from mlxserver.chat.formats.schemas import properties

_ID_CHARS = string.ascii_letters + string.digits


def random_id() -> str:
    """The id of a call that the model gave none: 32 random letters and digits."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(32))


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request lets be called: functions by name, with the JSON schemas of their parameters."""

    parameters: dict[str, Any] = field(default_factory=dict)
    is_parallel: bool = True
    """More than one call in an answer."""
    shows_reasoning: bool = True
    """Reasoning is told from content."""

    def properties(self, name: str) -> dict[str, Any]:
        return properties(self.parameters.get(name))


@dataclass(slots=True)
class Sink:
    """Collects deltas; numbers the calls and gives them ids."""

    make_id: Callable[[], str] = random_id
    deltas: list[AnswerDelta] = field(default_factory=list)
    num_calls: int = 0

    def content(self, text: str) -> None:
        if text:
            self.deltas.append(Content(text))

    def reasoning(self, text: str) -> None:
        if text:
            self.deltas.append(Reasoning(text))

    def begin_call(self, name: str, id: str = "") -> None:
        self.deltas.append(CallBegin(self.num_calls, name, id or self.make_id()))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that began last."""
        if text:
            self.deltas.append(CallArguments(self.num_calls - 1, text))

    def take(self) -> list[AnswerDelta]:
        found, self.deltas = self.deltas, []
        return found


class CallFormat(Protocol):
    """How a family of models writes its tool calls."""

    @property
    def opening(self) -> str:
        """The mark that begins a call; empty where a call looks like text at first."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that must be seen even where they are special tokens."""
        ...

    def read(self, scanner: Scanner, sink: Sink, tools: Tools) -> Generator[None, None, None]:
        """Takes the whole answer behind its reasoning."""
        ...

    def grammar(self, writer: GrammarWriter, tools: Tools) -> str:
        """The expression for an answer that is nothing but calls, from ``opening`` on."""
        ...
