"""The names and letters by which requests and options pick samplers."""

from __future__ import annotations

from collections.abc import Iterable

LETTERS = {
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
NAMES = tuple(LETTERS.values())

_ALIASES = {
    **{name: name for name in NAMES},
    **{name.replace("_", "-"): name for name in NAMES},
    **{name.replace("_", ""): name for name in NAMES},
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
}


def samplers_from_names(names: Iterable[str]) -> tuple[str, ...]:
    """Canonical names, in order; case does not matter and unknown names are dropped."""
    found = (_ALIASES.get(name.lower()) for name in names)
    return tuple(name for name in found if name)


def samplers_from_letters(letters: str) -> tuple[str, ...]:
    """Canonical names, in order; unknown letters are dropped."""
    return tuple(LETTERS[letter] for letter in letters if letter in LETTERS)
