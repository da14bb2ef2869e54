"""The names and letters by which samplers are picked."""

from __future__ import annotations

from collections.abc import Iterable

BY_LETTER = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
BY_NAME = ALIASES | {
    spelling: name
    for name in BY_LETTER.values()
    for spelling in (name, name.replace("_", "-"), name.replace("_", ""))
}


def samplers_by_name(names: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
    """(canonical names in order, the unknown ones); case does not matter."""
    lowered = [name.lower() for name in names]
    return tuple(BY_NAME[n] for n in lowered if n in BY_NAME), [n for n in lowered if n not in BY_NAME]


def samplers_by_letter(letters: str) -> tuple[tuple[str, ...], list[str]]:
    """(canonical names in order, the unknown letters)."""
    known = tuple(BY_LETTER[letter] for letter in letters if letter in BY_LETTER)
    return known, [letter for letter in letters if letter not in BY_LETTER]
