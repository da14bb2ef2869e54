"""Chunks beside streams are as long as a few decode steps, by the measured times."""

from __future__ import annotations

import random
import statistics

import pytest

from mlxserver.engine.pace import FIRST_CHUNK, LONGEST_CHUNK_SECONDS, PROMPT_SHARE, Pace, smallest_chunk


def learned(decode: float, per_token: float) -> Pace:
    pace = Pace()
    for _ in range(20):
        pace.ran(decode, [], 4)
        pace.ran(decode + 64 * per_token, [(0, 64)], 4)
    return pace


def budget(pace: Pace, streams_run: bool, start: int = 0) -> int:
    return pace.budget(pace.seconds(streams_run), start)


def test_a_chunk_takes_its_share_of_decode_steps() -> None:
    pace = learned(decode=0.1, per_token=0.002)
    assert budget(pace, True) == pytest.approx(PROMPT_SHARE * 0.1 / 0.002, abs=2)


@pytest.mark.parametrize(
    ("decode", "n_waiting", "seconds"),
    [(0.01, 1, 0.03), (0.01, 3, 0.09), (0.01, 9, 0.12), (0.1, 4, LONGEST_CHUNK_SECONDS), (0.5, 4, 1.5)],
)
def test_several_prompts_have_a_share_each(decode: float, n_waiting: int, seconds: float) -> None:
    pace = learned(decode, per_token=0.001)
    assert pace.seconds(True, n_waiting) == pytest.approx(seconds)
    assert pace.seconds(False, n_waiting) == LONGEST_CHUNK_SECONDS


def test_before_anything_ran_chunks_are_small() -> None:
    assert budget(Pace(), True) == budget(Pace(), False) == FIRST_CHUNK


def test_alone_a_step_ends_soon() -> None:
    pace = Pace()
    pace.ran(2.0, [(0, 1000)], 0)
    assert budget(pace, False) == LONGEST_CHUNK_SECONDS / 2.0 * 1000


def test_a_rise_is_followed_at_once() -> None:
    pace = learned(decode=0.1, per_token=0.002)
    pace.ran(0.1 + 64 * 0.004, [(0, 64)], 4)
    assert budget(pace, True) <= PROMPT_SHARE * 0.1 / 0.0038


def test_several_prompts_of_a_step_are_one_sample() -> None:
    pace = Pace()
    pace.ran(1.0, [(0, 50), (100, 150)], 0)
    assert pace.cost(0, 50) == pytest.approx(0.5)
    assert budget(pace, False) == pytest.approx(100 * LONGEST_CHUNK_SECONDS, abs=1)


def test_the_cost_of_a_later_token_is_foreseen() -> None:
    pace = Pace()
    for start in range(0, 2048, 128):
        pace.ran(128 * (0.002 + 1e-5 * (start + 64)), [(start, start + 128)], 0)
    assert pace.cost(4000, 4100) == pytest.approx(100 * (0.002 + 1e-5 * 4050), rel=0.05)
    assert pace.cost(0, 100) == pytest.approx(100 * (0.002 + 1e-5 * 50), rel=0.2)
    n = budget(pace, False, 4000)
    assert pace.cost(4000, 4000 + n) == pytest.approx(LONGEST_CHUNK_SECONDS, rel=0.05)


def test_cost_never_falls_with_the_position() -> None:
    pace = Pace()
    for start in range(0, 2048, 128):
        pace.ran(1.0 - start / 4096, [(start, start + 128)], 0)
    assert pace.cost(4000, 4100) == pytest.approx(pace.cost(0, 100))


@pytest.mark.parametrize(("noise", "most"), [(0.0, 4.1), (0.1, 5.5)])
def test_the_largest_gap_beside_a_long_prompt(noise: float, most: float) -> None:
    """Costs as SmolLM2's on a CPU: a chunk's own cost, a token's, and what grows with the position."""
    ratios = [_largest_gap(random.Random(seed), noise) for seed in range(9)]
    assert statistics.median(ratios) <= most


def _largest_gap(chance: random.Random, noise: float) -> float:
    """Over the median gap, while 4,000 tokens arrive."""
    pace, decode, gaps = Pace(), 0.085, []

    def run(start: int, n: int, n_decodes: int) -> float:
        own = (0.03 + n * (0.0066 + 4.5e-6 * (start + n / 2))) if n else 0.0
        seconds = (own + decode * n_decodes) * chance.lognormvariate(0, noise)
        pace.ran(seconds, [(start, start + n)] if n else [], n_decodes)
        return seconds

    run(0, 128, 0)
    run(128, 122, 0)
    before = [run(0, 0, 1) for _ in range(16)]
    at = 0
    while at < 4000:
        n = min(max(budget(pace, True, at), smallest_chunk(at)), 4000 - at)
        gaps.append(run(at, n, 1))
        at += n
    return max(gaps) / statistics.median(before)
