"""What a chat answer's text turns out to hold, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mlxserver.chat.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The ``index``-th tool call of the answer; its arguments follow."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


AnswerDelta = Content | Reasoning | CallBegin | CallArguments


@dataclass(frozen=True, slots=True)
class Answer:
    """All deltas of an answer together."""

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == Answer()


def merged(deltas: Iterable[AnswerDelta]) -> list[AnswerDelta]:
    """Neighbours of one kind as one."""
    found: list[AnswerDelta] = []
    for delta in deltas:
        match found[-1] if found else None, delta:
            case (Content(first), Content(second)):
                found[-1] = Content(first + second)
            case (Reasoning(first), Reasoning(second)):
                found[-1] = Reasoning(first + second)
            case (CallArguments(index, first), CallArguments(same, second)) if index == same:
                found[-1] = CallArguments(index, first + second)
            case _:
                found.append(delta)
    return found


def joined(deltas: Iterable[AnswerDelta]) -> Answer:
    """The whole answer."""
    content, reasoning = "", ""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        match delta:
            case Content():
                content += delta.text
            case Reasoning():
                reasoning += delta.text
            case CallBegin():
                calls[delta.index] = ToolCall(delta.name, "", delta.id)
            case CallArguments():
                call = calls[delta.index]
                calls[delta.index] = replace(call, arguments=call.arguments + delta.text)
    return Answer(content, reasoning, tuple(calls[index] for index in sorted(calls)))
