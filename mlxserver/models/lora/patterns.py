"""PEFT's ``rank_pattern`` and ``alpha_pattern``: values for the layers that a pattern names.

A pattern is a regular expression there. Known of these are characters, ``.``, ``\\d`` and ``\\.``, each with
``*`` or ``+`` behind it, and ``^`` and ``$`` at the ends. All ways are followed at once, without going back:
a pattern that a stranger made could otherwise take for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxserver.models.lora.adapter import AdapterError

MAX_PATTERNS, MAX_LENGTH = 4096, 256
_PIECE = re.compile(r"(\\d|\\\.|[\w.-])([*+]?)")


@dataclass(frozen=True, slots=True)
class _Step:
    char: str
    """One character, ``.`` for any, ``\\d`` for a digit, ``\\.`` for a full stop."""
    repeats: bool
    """Any number of them, none too."""

    def takes(self, char: str) -> bool:
        if self.char in (".", "\\d"):
            return self.char == "." or char.isdecimal()
        return char == self.char[-1]


class Patterns:
    """``settings[key]``: pattern -> value. Raises AdapterError for a pattern that is not known here."""

    def __init__(self, key: str, patterns: Mapping[str, Any]) -> None:
        if len(patterns) > MAX_PATTERNS:
            raise AdapterError(f"adapter_config.json: {key} has {len(patterns)} patterns")
        self._values = patterns
        self._plain = {pattern for pattern in patterns if re.fullmatch(r"[\w-]+(\.[\w-]+)*", pattern)}
        self._steps = {pattern: _steps(key, pattern) for pattern in patterns if pattern not in self._plain}

    def find(self, path: str) -> str | None:
        """The first pattern for the layer at ``path`` or for one of the last parts of its path."""
        ends = {path, *(path[at + 1 :] for at, char in enumerate(path) if char == ".")}
        for pattern in self._values:
            if pattern in ends or (pattern in self._steps and self._follows(pattern, path, ends)):
                return pattern
        return None

    def _follows(self, pattern: str, path: str, ends: Iterable[str]) -> bool:
        steps = self._steps[pattern]
        return any(_matches(steps, end) for end in ([path] if pattern.startswith("^") else ends))


def _steps(key: str, pattern: str) -> list[_Step]:
    inner = pattern.removeprefix("^").removesuffix("$")
    if len(pattern) > MAX_LENGTH or not re.fullmatch(f"(?:{_PIECE.pattern})+", inner):
        raise AdapterError(f"adapter_config.json: {key}: the pattern {pattern[:80]!r} is not supported")
    steps = []
    for char, times in _PIECE.findall(inner):
        if times != "*":
            steps.append(_Step(char, repeats=False))
        if times:
            steps.append(_Step(char, repeats=True))
    return steps


def _matches(steps: list[_Step], text: str) -> bool:
    """Whether the whole text follows the steps; all ways are gone at once."""
    at = _skipping(steps, {0})
    for char in text:
        moved = set()
        for step in at:
            if step < len(steps) and steps[step].takes(char):
                moved.add(step if steps[step].repeats else step + 1)
        at = _skipping(steps, moved)
    return len(steps) in at


def _skipping(steps: list[_Step], at: set[int]) -> set[int]:
    """With the steps that are reached where what repeats does not come at all."""
    for step in sorted(at):
        while step < len(steps) and steps[step].repeats:
            step += 1
            at.add(step)
    return at
