"""Reads text that arrives in pieces. Parsers are generators that yield where they need more of it.

What a parser finds never depends on where the pieces were cut: a decision waits until the text that
it rests on is there, or until the text has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache

Emit = Callable[[str], None]
SPACE = " \n\r\t"


class Scanner:
    """``is_complete``: the text ended by itself, so a marker's beginning at its end is text."""

    def __init__(self) -> None:
        self.has_ended = False
        self.is_complete = True
        self._text = ""
        self._taken: list[str] = []

    def push(self, text: str) -> None:
        self._text += text

    @property
    def waiting(self) -> str:
        """Text that arrived and was not taken yet."""
        return self._text

    def mark(self) -> None:
        """From here on ``since_mark`` collects what is taken."""
        self._taken = []

    def since_mark(self) -> str:
        return "".join(self._taken)

    def take(self, size: int) -> str:
        taken, self._text = self._text[:size], self._text[size:]
        self._taken.append(taken)
        return taken

    def needs(self, size: int) -> Generator[None, None, bool]:
        """Whether ``size`` characters are there; false only at the text's end."""
        while len(self._text) < size and not self.has_ended:
            yield
        return len(self._text) >= size

    def literal(self, text: str) -> Generator[None, None, bool]:
        """Takes ``text`` if it comes next; a beginning of it that a limit cut is dropped."""
        while len(self._text) < len(text) and text.startswith(self._text) and not self.has_ended:
            yield
        if self._text.startswith(text):
            self.take(len(text))
            return True
        if not self.is_complete and text.startswith(self._text):
            self.take(len(self._text))
        return False

    def closing(self, text: str) -> Generator[None, None, None]:
        """Takes ``text``, or as much of it as there is before the end, and white space around it."""
        yield from self.space()
        if not (yield from self.literal(text)) and text.startswith(self._text):
            self.take(len(self._text))
        yield from self.space()

    def any_of(self, texts: Sequence[str]) -> Generator[None, None, str | None]:
        """Takes the longest of ``texts`` that comes next."""
        for text in sorted(texts, key=len, reverse=True):
            if (yield from self.literal(text)):
                return text
        return None

    def char(self) -> Generator[None, None, str]:
        """Takes one character; empty at the end."""
        yield from self.needs(1)
        return self.take(1)

    def peek(self) -> Generator[None, None, str]:
        """The next character, not taken; empty at the end."""
        yield from self.needs(1)
        return self._text[:1]

    def space(self) -> Generator[None, None, None]:
        """Takes white space."""
        while True:
            self.take(len(self._text) - len(self._text.lstrip(SPACE)))
            if self._text or self.has_ended:
                return
            yield

    def until(self, markers: Sequence[str], emit: Emit) -> Generator[None, None, str | None]:
        """Emits what comes before the first marker and takes that; None where the text ended without one."""
        while True:
            size, marker = first_marker(self._text, tuple(markers), self.has_ended)
            if size:
                emit(self.take(size))
            if marker is not None:
                return self.take(len(marker))
            if self.has_ended:
                rest = self.take(len(self._text))
                if rest and self.is_complete:
                    emit(rest)
                return None
            yield

    def collect_until(self, markers: Sequence[str]) -> Generator[None, None, tuple[str, str | None]]:
        """(the text before the first marker, the marker), both taken."""
        parts: list[str] = []
        marker = yield from self.until(markers, parts.append)
        return "".join(parts), marker

    def rest(self, emit: Emit) -> Generator[None, None, None]:
        """Everything that still comes."""
        while True:
            if self._text:
                emit(self.take(len(self._text)))
            if self.has_ended:
                return
            yield


@lru_cache(maxsize=256)
def _beginnings(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(sorted({re.escape(marker[0]) for marker in markers})))


def first_marker(text: str, markers: tuple[str, ...], is_whole: bool) -> tuple[int, str | None]:
    """(how much of ``text`` is surely before the first marker, the marker right behind it if it is there)."""
    for found in _beginnings(markers).finditer(text) if markers else ():
        at = found.start()
        whole = [marker for marker in markers if text.startswith(marker, at)]
        grows = not is_whole and any(
            len(marker) > len(text) - at and marker.startswith(text[at:]) for marker in markers
        )
        if grows:
            return at, None
        if whole:
            return at, max(whole, key=len)
        if is_whole and any(marker.startswith(text[at:]) for marker in markers):
            return at, None
    return len(text), None
