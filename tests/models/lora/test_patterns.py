"""PEFT's patterns mean what they mean to Python's regular expressions."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.patterns import MAX_LENGTH, MAX_PATTERNS, Patterns

PATH = "model.layers.11.self_attn.q_proj"


@pytest.mark.parametrize(
    "pattern, is_found",
    [
        ("q_proj", True),
        ("proj", False),
        ("self_attn.q_proj", True),
        ("attn.q_proj", False),
        (PATH, True),
        (f"^{PATH}", True),
        ("^q_proj", False),
        ("q_proj$", True),
        (r"model\.layers\.\d+\.self_attn\.q_proj", True),
        (r"layers.\d.self_attn.q_proj", False),
        (r".*q_proj", True),
        (r"layers.1*.self_attn.._proj", True),
        (r"layers.*k_proj", False),
    ],
)
def test_a_pattern_finds_the_end_of_a_path(pattern: str, is_found: bool) -> None:
    assert (Patterns("rank_pattern", {pattern: 1}).find(PATH) == pattern) is is_found
    assert bool(re.match(rf"(.*\.)?({pattern})$", PATH)) is is_found


PIECES = st.sampled_from(["a", "b", ".", r"\.", r"\d", "1", "_", "a*", "a+", ".*", ".+", r"\d*", r"\.+"])


@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.text("ab1_.", min_size=1, max_size=9))
def test_matches_are_those_of_pythons_regular_expressions(pattern: str, path: str) -> None:
    wanted = re.match(rf"(.*\.)?({pattern})$", path)
    assert (Patterns("rank_pattern", {pattern: 1}).find(path) is not None) == bool(wanted)


def test_the_first_pattern_counts() -> None:
    assert Patterns("rank_pattern", {"k_proj": 1, ".*proj": 2, "q_proj": 3}).find(PATH) == ".*proj"


@pytest.mark.parametrize(
    "pattern", ["(q|k)_proj", "[qk]_proj", "q{2}", "q?", "(?=q)", "", "^", "\\w", "a**", "ü$("]
)
def test_other_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(AdapterError, match="rank_pattern: the pattern"):
        Patterns("rank_pattern", {pattern: 1})


def test_too_many_and_too_long() -> None:
    with pytest.raises(AdapterError, match="has 4097 patterns"):
        Patterns("rank_pattern", {f"x{n}": 1 for n in range(MAX_PATTERNS + 1)})
    with pytest.raises(AdapterError, match="is not supported"):
        Patterns("rank_pattern", {"a*" * MAX_LENGTH: 1})


def test_a_pattern_that_would_take_for_ever() -> None:
    patterns = Patterns("rank_pattern", {".*" * 60 + "x": 1})
    start = time.monotonic()
    assert patterns.find("a" * 100) is None
    assert time.monotonic() - start < 2
