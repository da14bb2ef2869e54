"""The one way from a model's text to content, reasoning and tool calls, streamed or not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from mlxserver.chat.answer_deltas import Answer, AnswerDelta, joined, merged
from mlxserver.chat.formats.calls import CallFormat, Sink, Tools, random_id
from mlxserver.chat.formats.scanner import SPACE, Scanner
from mlxserver.chat.reasoning_tags import ReasoningTags


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """How the answers to one request are read."""

    start: str = ""
    """The part of the answer that the prompt already holds: an opened tag, a prefilled text."""
    shows_start: bool = True
    """That part belongs to the streamed answer."""
    skips_space: bool = False
    """White space at the very beginning is not content."""
    tags: ReasoningTags = ReasoningTags()
    """No tags: reasoning is not told from content."""
    calls: CallFormat | None = None
    """None: tool calls are not looked for."""
    tools: Tools = field(default_factory=Tools)


class AnswerParser:
    """Feed it the text of one answer in any pieces; the deltas joined do not depend on the pieces."""

    def __init__(self, rules: AnswerRules, make_id: Callable[[], str] = random_id) -> None:
        self._scanner = Scanner()
        self._sink = Sink(make_id)
        self._reading = _read_answer(self._scanner, self._sink, rules)
        self._is_done = False
        self._start = rules.start
        self._shown_before: list[AnswerDelta] = []
        self._deltas: list[AnswerDelta] = []
        if rules.start:
            before = self._advance(rules.start)
            if rules.shows_start:
                self._shown_before = before

    def feed(self, text: str) -> list[AnswerDelta]:
        """What ``text`` adds."""
        before, self._shown_before = self._shown_before, []
        return merged([*before, *self._advance(text)])

    def finish(self, is_complete: bool = True) -> list[AnswerDelta]:
        """What was held back. Of an answer that a limit cut, the beginning of a marker is dropped."""
        self._scanner.has_ended = True
        self._scanner.is_complete = is_complete
        return self.feed("")

    @property
    def answer(self) -> Answer:
        """Everything so far, the part that the prompt holds included."""
        return joined(self._deltas)

    def _advance(self, text: str) -> list[AnswerDelta]:
        self._scanner.push(text)
        if not self._is_done:
            try:
                self._is_done = next(self._reading, _DONE) is _DONE
            except RecursionError:
                # values nested beyond all reason: what was read of them stays
                self._is_done = True
        found = self._sink.take()
        self._deltas += found
        return found


_DONE = object()


def _read_answer(scanner: Scanner, sink: Sink, rules: AnswerRules) -> Generator[None, None, None]:
    if rules.skips_space:
        yield from scanner.space()
    if rules.tags.end:
        yield from _read_reasoning(scanner, sink, rules.tags)
    if rules.calls is not None:
        yield from rules.calls.read(scanner, sink, rules.tools)
    yield from scanner.rest(sink.content)


def _read_reasoning(scanner: Scanner, sink: Sink, tags: ReasoningTags) -> Generator[None, None, None]:
    """Reasoning at the very beginning; all of an answer that never ends it is reasoning."""
    if tags.start and not (yield from scanner.literal(tags.start.strip())):
        return
    yield from _optional(scanner, tags.start[len(tags.start.rstrip()) :])
    if (yield from scanner.until((tags.end.strip(),), _NotBlank(sink.reasoning))) is None:
        return
    yield from _optional(scanner, tags.end[len(tags.end.rstrip()) :])


def _optional(scanner: Scanner, space: str) -> Generator[None, None, None]:
    for char in space:
        yield from scanner.literal(char)


class _NotBlank:
    """Passes text on from its first character that is no white space."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._space: str | None = ""

    def __call__(self, text: str) -> None:
        if self._space is None:
            self._emit(text)
        elif (self._space + text).strip(SPACE):
            text, self._space = self._space + text, None
            self._emit(text)
        else:
            self._space += text
