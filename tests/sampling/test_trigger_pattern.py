"""Patterns that would take the server's memory or time are refused before they are compiled."""

from __future__ import annotations

import time

import pytest

from mlxserver.sampling.grammar import trigger_pattern
from mlxserver.sampling.grammar.trigger_pattern import compiled, find_first
from mlxserver.sampling.params import SamplerError, Trigger


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]{1000000000}",
        "[]a]{1000000000}",
        "((a{1000}){1000}){1000}",
        "(?:(?:[a-z]{1000}b){1000,}){1000}",
        "\\){999999}",
        "a{99999999999999999999}",
        "(" * 101 + "a" + ")" * 101,
        "a" * 32_769,
        "(",
        "*a",
        "a{2}{100000}",
    ],
)
def test_refused(pattern: str) -> None:
    with pytest.raises(SamplerError, match="^invalid trigger pattern: "):
        compiled(Trigger("pattern", pattern))


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]{1000}x",
        "[(]{5}[)]",
        "(<tool>|<call>){1,3}",
        "a{0,100000000}",
        "(?:a{0,999}){0,999}",
        "\\(" * 500,
    ],
)
def test_taken(pattern: str) -> None:
    assert compiled(Trigger("pattern", pattern)).pattern == pattern.encode()


def test_a_word_is_no_pattern() -> None:
    assert find_first([compiled(Trigger("word", "(a){99999999}"))], b"x(a){99999999}") == 1


@pytest.mark.parametrize(
    ("kind", "pattern", "start"),
    [("pattern", "b(c)", 2), ("pattern", "b()c", 1), ("pattern_full", "a.*", 0), ("pattern_full", "b", None)],
)
def test_where_it_begins(kind: str, pattern: str, start: int | None) -> None:
    assert find_first([compiled(Trigger(kind, pattern))], b"abc") == start  # type: ignore[arg-type]


def test_all_patterns_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trigger_pattern, "SEARCH_SECONDS", 0.05)
    slow = [compiled(Trigger("pattern", "((a{1,99}){1,9}){1,99}[xy]"))] * 100
    start = time.monotonic()
    with pytest.raises(SamplerError, match="takes too long"):
        find_first(slow, b"a" * 5000)
    assert time.monotonic() - start < 5
