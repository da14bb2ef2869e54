"""What a grammar is made of, whatever notation it was written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAST_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Ranges = tuple[tuple[int, int], ...]
"""Code points, inclusive, ascending, not touching."""


class GrammarError(ValueError):
    """A grammar or schema that cannot be used, said in a way that its author understands."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ``ranges``; none of them: nothing matches."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the vocabulary, or (``negated``) any other one."""

    id: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON text that fits llguidance's reading of ``schema`` (a JSON text itself)."""

    schema: str


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alt:
    options: tuple[Seq, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """``most`` is None where nothing bounds it."""

    item: Node
    least: int
    most: int | None


Node = Chars | Token | Json | Ref | Seq | Alt | Repeat
Rules = Mapping[str, Alt]


def any_char() -> Chars:
    return Chars(clean([(0, LAST_CODE_POINT)]))


def clean(ranges: list[tuple[int, int]]) -> Ranges:
    """Sorted and joined, without what no text can have: NUL, surrogates, numbers above Unicode's."""
    allowed = ((1, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST_CODE_POINT))
    parts = [(max(low, a), min(high, b)) for low, high in ranges for a, b in allowed]
    joined: list[tuple[int, int]] = []
    for low, high in sorted(part for part in parts if part[0] <= part[1]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(ranges: list[tuple[int, int]]) -> Ranges:
    gaps, start = [], 0
    for low, high in sorted(part for part in ranges if part[0] <= part[1]):
        if start < low:
            gaps.append((start, low - 1))
        start = max(start, high + 1)
    return clean([*gaps, (start, LAST_CODE_POINT)] if start <= LAST_CODE_POINT else gaps)
