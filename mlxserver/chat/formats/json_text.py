"""JSON inside an answer, read as it arrives and passed on as the model wrote it."""

from __future__ import annotations

import json
from collections.abc import Generator

from mlxserver.chat.formats.scanner import SPACE, Emit, Scanner

_OPENING, _CLOSING = frozenset("{["), frozenset("}]")


def read_value(scanner: Scanner, emit: Emit) -> Generator[None, None, bool]:
    """Takes one value and emits its text; whether it was whole. White space at a cut end is left out."""
    first = yield from scanner.peek()
    if first in ("{", "["):
        return (yield from _read_nested(scanner, Trimmed(emit)))
    if first == '"':
        return (yield from _read_nested(scanner, Trimmed(emit)))
    text = yield from _scalar(scanner)
    if text:
        emit(text)
    return bool(text)


def read_string(scanner: Scanner) -> Generator[None, None, str | None]:
    """Takes one string; its value, or None where there is none or it is cut."""
    if (yield from scanner.peek()) != '"':
        return None
    parts: list[str] = []
    is_whole = yield from _read_nested(scanner, parts.append)
    return decoded("".join(parts)) if is_whole else None


def decoded(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


class Trimmed:
    """Passes text on without white space that nothing follows."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._space = ""

    def __call__(self, text: str) -> None:
        text = self._space + text
        shown = text.rstrip(SPACE)
        self._space = text[len(shown) :]
        if shown:
            self._emit(shown)


def _read_nested(scanner: Scanner, emit: Emit) -> Generator[None, None, bool]:
    """An object, array or string, up to the bracket or quote that closes it; a cut escape is left out."""
    depth, in_string = 0, False
    while (yield from scanner.needs(1)):
        text, at = scanner.waiting, 0
        while at < len(text):
            char = text[at]
            if in_string and char == "\\":
                size = _escape_len(text, at)
                if at + size > len(text):
                    break
                at += size
                continue
            if char == '"':
                in_string = not in_string
            elif not in_string:
                depth += (char in _OPENING) - (char in _CLOSING)
            at += 1
            if depth <= 0 and not in_string:
                emit(scanner.take(at))
                return True
        emit(scanner.take(at))
        if scanner.waiting:
            if not (yield from scanner.needs(len(scanner.waiting) + 1)):
                scanner.take(len(scanner.waiting))
    return False


def _escape_len(text: str, at: int) -> int:
    """How many characters the escape at ``at`` has, or at least has."""
    return 6 if text[at + 1 : at + 2] == "u" else 2


def _scalar(scanner: Scanner) -> Generator[None, None, str]:
    text = ""
    while (char := (yield from scanner.peek())) and char not in ",}]" + SPACE and char != "<":
        text += scanner.take(1)
    return text
