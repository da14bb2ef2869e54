"""The search for equal runs, against llama-server's own written down plainly."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from mlxserver.engine.chunks import Run, find_runs


def plain_search(old: list[int], new: list[int], start: int, shortest: int) -> list[Run]:
    """reference/slots_and_cache.md, section 5: both cursors begin behind the common prefix."""
    runs, hc, hp = [], start, start
    while hc < len(old) and hp < len(new):
        m = 0
        while hc + m < len(old) and hp + m < len(new) and old[hc + m] == new[hp + m]:
            m += 1
        if m >= shortest:
            runs.append(Run(hc, hc + m, hp))
            hc, hp = hc + m, hp + m
        else:
            hc += 1
    return runs


tokens = st.lists(st.sampled_from([1, 2, 256, 257, 65536]), max_size=40)


@given(tokens, tokens, st.integers(1, 6))
def test_as_llama_server_searches(old: list[int], new: list[int], shortest: int) -> None:
    start = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    found = find_runs(array("i", old), array("i", new), start, start, shortest)
    assert found == plain_search(old, new, start, shortest)


def test_a_removed_middle_is_found_and_an_inserted_one_is_not() -> None:
    old, new = array("i", range(100)), array("i", [*range(20), *range(40, 100)])
    assert find_runs(old, new, 20, 20, 8) == [Run(40, 100, 20)]
    assert find_runs(new, old, 20, 20, 8) == []


def test_bytes_of_two_tokens_are_not_taken_for_one() -> None:
    old = array("i", [0x01000000, 0x00000002])
    assert find_runs(old, array("i", [0x00000201]), 0, 0, 1) == []
    assert find_runs(old, array("i", [2]), 0, 0, 1) == [Run(1, 2, 0)]
