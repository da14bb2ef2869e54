"""JSON inside an answer, read as it arrives and passed on as the model wrote it."""

from __future__ import annotations

import json
from collections.abc import Generator

from mlxserver.chat.formats.scanner import SPACE, Emit, Scanner

_CLOSING = {"}", "]"}


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
    """An object, array or string, up to the bracket or quote that closes it."""
    depth, in_string, is_escaped = 0, False, False
    while (yield from scanner.needs(1)):
        text = scanner.waiting
        for at, char in enumerate(text):
            if in_string:
                if is_escaped:
                    is_escaped = False
                elif char == "\\":
                    is_escaped = True
                elif char == '"':
                    in_string = False
            elif char == '"':
                in_string = True
            elif char in ("{", "["):
                depth += 1
            elif char in _CLOSING:
                depth -= 1
            if depth <= 0 and not in_string:
                emit(scanner.take(at + 1))
                return True
        emit(scanner.take(len(text)))
    return False


def _scalar(scanner: Scanner) -> Generator[None, None, str]:
    text = ""
    while (char := (yield from scanner.peek())) and char not in ",}]" + SPACE and char != "<":
        text += scanner.take(1)
    return text
