"""Patterns of clients that start a lazy grammar: bounded in what they take to compile and to search for."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import regex

from mlxserver.sampling.params import SamplerError, Trigger

SEARCH_SECONDS = 0.05
"""A pattern may take forever; the search for all of a request's together may not, after each token."""
MAX_LENGTH = 32_768
"""Characters of a pattern."""
MAX_WEIGHT = 100_000
"""Characters of a pattern with its repetitions written out, as the library has it in memory."""
MAX_DEPTH = 100

_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"\{(\d*)(?:,\d*)?\}")
Pattern = regex.Pattern[bytes]


def compiled(trigger: Trigger) -> Pattern:
    """Raises SamplerError for a pattern that is none, or too much."""
    text = trigger.value
    if len(text) > MAX_LENGTH:
        raise SamplerError(f"invalid trigger pattern: longer than {MAX_LENGTH} characters")
    if trigger.kind == "word":
        text = re.escape(text)
    else:
        _check_weight(text)
        text = _anchored(text) if trigger.kind == "pattern_full" else text
    try:
        return regex.compile(text.encode("utf-8", "surrogatepass"))
    except (regex.error, OverflowError, RecursionError, MemoryError, ValueError) as error:
        raise SamplerError(f"invalid trigger pattern: {error}") from None


def find_first(patterns: Sequence[Pattern], text: bytes) -> int | None:
    """Where the grammar begins: in the first pattern that is found, at its first group that matched
    something, else at the whole match. Raises SamplerError where the search takes too long."""
    deadline = time.monotonic() + SEARCH_SECONDS
    for pattern in patterns:
        try:
            match = pattern.search(text, timeout=max(deadline - time.monotonic(), 0.001))
        except (TimeoutError, MemoryError):
            raise SamplerError("the search for a grammar's trigger takes too long") from None
        if match is not None:
            spans = [match.span(group) for group in range(1, match.re.groups + 1)]
            return int(next((start for start, end in spans if end > start), match.start()))
    return None


def _anchored(pattern: str) -> str:
    begin, end = "" if pattern.startswith("^") else "^", "" if pattern.endswith("$") else "$"
    return f"{begin}{pattern}{end}" if pattern else "^$"


def _check_weight(pattern: str) -> None:
    """Counts characters, those of a repeated group as often as it is repeated at least."""
    groups, last, at = [0], 0, 0
    while at < len(pattern):
        char = pattern[at]
        repeat = _REPEAT.match(pattern, at)
        whole = repeat or _ESCAPED.match(pattern, at) or _CLASS.match(pattern, at)
        if repeat and last:
            more = last * (max(int(repeat[1] or 0), 1) - 1) if len(repeat[1]) < 9 else MAX_WEIGHT + 1
            groups[-1] += more
            last += more
        elif char == "(":
            groups.append(0)
            last = 0
        elif char == ")" and len(groups) > 1:
            last = groups.pop() + 1
            groups[-1] += last
        else:
            last = 1
            groups[-1] += 1
        if groups[-1] > MAX_WEIGHT or len(groups) > MAX_DEPTH:
            raise SamplerError("invalid trigger pattern: it repeats or nests too much")
        at = whole.end() if whole else at + 1
