"""Prompts take as long as a few decode steps beside streams, by the measured times."""

from __future__ import annotations

import random
import statistics

import pytest

from mlxserver.engine.pace import (
    FIRST_CHUNK,
    LONGEST_CHUNK_SECONDS,
    MOST_SHARES,
    OWN_PASS_SHARE,
    PROMPT_SHARE,
    UNKNOWN_CHUNK_SECONDS,
    Pace,
)
from mlxserver.engine.pass_shape import KEYS_WORTH, PassShape

FIXED, ROW = 0.092, 0.018
"""SmolLM2's seconds with 32-bit floats on a CPU: a decode step takes 110 ms with a row, 240 with eight."""
TOKEN, COLUMN = 0.003, 1.75e-6
"""A prompt token takes 3 ms at the beginning, 10 ms at position 4,000."""
PASS_TOKENS = FIXED / TOKEN


def decode(n_rows: int) -> float:
    return FIXED + ROW * n_rows


def one(start: int, end: int) -> PassShape:
    return PassShape.of([(start, end)])


def seconds_of(shape: PassShape) -> float:
    return FIXED * shape.is_own + shape.n_tokens * TOKEN + shape.n_columns * COLUMN


def learned() -> Pace:
    pace = Pace(PASS_TOKENS)
    for _ in range(20):
        for n_rows in (1, 8):
            pace.ran(decode(n_rows), [], n_rows)
        for start in (0, 1000, 2000):
            shape = one(start, start + 64)
            pace.ran(decode(4) + seconds_of(shape), [shape], 4)
    return pace


def test_a_pass_costs_what_so_many_tokens_would() -> None:
    assert learned().pass_seconds == pytest.approx(FIXED, rel=0.1)


def test_it_is_paid_once_a_pass() -> None:
    pace, shape = learned(), PassShape.padded([(0, 66)] * 8)
    assert pace.cost(shape) == pytest.approx(seconds_of(shape), rel=0.1)
    alone = 8 * pace.cost(one(0, 66))
    assert alone - pace.cost(shape) == pytest.approx(7 * FIXED, rel=0.15)


@pytest.mark.parametrize("start", [0, 1500, 4000])
@pytest.mark.parametrize("n_streams", [0, 1, 8])
def test_a_chunk_takes_its_share_of_decode_steps(n_streams: int, start: int) -> None:
    pace = learned()
    n = pace.budget(pace.seconds(n_streams), start)
    wanted = OWN_PASS_SHARE * decode(n_streams) if n_streams else LONGEST_CHUNK_SECONDS
    assert seconds_of(one(start, start + n)) == pytest.approx(wanted, rel=0.15)


@pytest.mark.parametrize("start", [0, 1500, 4000])
def test_in_the_streams_pass_it_takes_its_share_too(start: int) -> None:
    """However few tokens a chunk has, what the prompt has so far is read for it."""
    pace = learned()
    n = pace.budget(pace.seconds(8, is_own=False), start, is_own=False)
    shape = PassShape.of([(start, start + n)], is_own=False)
    assert seconds_of(shape) == pytest.approx(PROMPT_SHARE * decode(8), rel=0.1)
    assert pace.cost(shape) == pytest.approx(PROMPT_SHARE * decode(8), rel=0.1)


def test_columns_are_read_once_for_each_prompt() -> None:
    assert PassShape.of([(100, 110)]).n_columns == (10 + KEYS_WORTH) * 105
    assert PassShape.of([(0, 10), (100, 110)]).n_columns == (20 + 2 * KEYS_WORTH) * 55
    assert PassShape.padded([(0, 10), (100, 104)]).n_columns == (20 + 2 * KEYS_WORTH) * 99


def test_several_prompts_have_a_share_each() -> None:
    pace = Pace()
    pace.ran(0.01, [], 1)
    shares = [pace.seconds(1, n, is_own=False) / 0.01 / PROMPT_SHARE for n in (1, 3, MOST_SHARES + 5)]
    assert shares == pytest.approx([1, 3, MOST_SHARES])
    assert pace.seconds(0, 4) == LONGEST_CHUNK_SECONDS
    slow = Pace()
    slow.ran(0.2, [], 1)
    assert slow.seconds(1, 9) == LONGEST_CHUNK_SECONDS
    slow.ran(10 * LONGEST_CHUNK_SECONDS, [], 1)
    assert slow.seconds(1, 9) == slow.seconds(1, 1) > LONGEST_CHUNK_SECONDS


def test_before_anything_ran_chunks_are_of_a_middle_size() -> None:
    pace = Pace()
    assert pace.budget(pace.seconds(0)) == FIRST_CHUNK
    assert pace.seconds(1) == UNKNOWN_CHUNK_SECONDS
    assert 1 < pace.budget(pace.seconds(1)) < FIRST_CHUNK
    assert pace.cost(PassShape.of([(0, FIRST_CHUNK)] * 2)) > LONGEST_CHUNK_SECONDS


def test_a_rise_is_followed_at_once() -> None:
    pace, shape = learned(), one(0, 64)
    before = pace.cost(shape) - pace.pass_seconds
    pace.ran(decode(4) + FIXED + 64 * 3 * TOKEN, [shape], 4)
    assert pace.cost(shape) - pace.pass_seconds > 2.5 * before


def test_passes_of_few_tokens_keep_what_is_known() -> None:
    pace = learned()
    before = pace.cost(one(0, 64))
    for _ in range(5):
        pace.ran(decode(4) + FIXED + TOKEN, [one(0, 1)], 4)
    assert pace.cost(one(0, 64)) == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("believed", [0.6 * PASS_TOKENS, PASS_TOKENS, 1.7 * PASS_TOKENS])
@pytest.mark.parametrize("dearer", [1.0, 1.3])
def test_prompts_never_drip(believed: float, dearer: float) -> None:
    """Decode steps were timed too short, or are cheaper than a pass: a prompt has steps worth their pass."""
    pace, widths = Pace(believed), []
    pace.ran(dearer * seconds_of(one(0, 11)) + decode(1), [one(0, 11)], 1)
    for _ in range(20):
        pace.ran(0.7 * decode(1), [], 1)
    at = 0
    while at < 1500:
        n = max(1, pace.budget(pace.seconds(1), at))
        widths.append(n)
        pace.ran(decode(1) + dearer * seconds_of(one(at, at + n)), [one(at, at + n)], 1)
        at += n
    assert statistics.median(widths) >= 4


def test_a_decode_step_beside_a_first_prompt_is_not_the_prompt_s() -> None:
    pace = Pace(PASS_TOKENS)
    pace.ran(seconds_of(one(0, 60)), [one(0, 60)], 0)
    before = pace.pass_seconds
    pace.ran(decode(1) + seconds_of(one(60, 61)), [one(60, 61)], 1)
    assert pace.pass_seconds == pytest.approx(before, rel=0.2)


def test_tokens_of_shared_passes_are_counted_with_their_padding() -> None:
    pace = Pace()
    for _ in range(3):
        pace.ran(1.0, [PassShape.padded([(0, 50), (0, 20)]), one(0, 100)], 0)
    assert pace.cost(one(0, 50)) == pytest.approx(0.25)
    assert pace.seconds_per_token == pytest.approx(1 / 200)


@pytest.mark.parametrize(
    ("noise", "is_own", "most"), [(0.0, True, 3.3), (0.1, True, 4.0), (0.0, False, 2.6), (0.1, False, 3.4)]
)
def test_the_largest_gap_beside_a_long_prompt(noise: float, most: float, is_own: bool) -> None:
    found = [max(_gaps(random.Random(seed), noise, is_own)) for seed in range(25)]
    assert statistics.median(found) <= most


def test_in_the_stream_s_own_pass_it_arrives_sooner() -> None:
    apart, joint = (_gaps(random.Random(0), 0.05, is_own) for is_own in (True, False))
    assert sum(joint) < 0.7 * sum(apart)


def _gaps(chance: random.Random, noise: float, is_own: bool) -> list[float]:
    """Over the median gap before, while 4,000 tokens arrive."""
    pace, gaps = Pace(PASS_TOKENS), []

    def run(start: int, n: int, n_decodes: int) -> float:
        shapes = [PassShape.of([(start, start + n)], is_own or not n_decodes)] if n else []
        own = sum(map(seconds_of, shapes)) + (decode(n_decodes) if n_decodes else 0)
        seconds = own * chance.lognormvariate(0, noise)
        pace.ran(seconds, shapes, n_decodes)
        return seconds

    run(0, 8, 0)
    run(0, 60, 0)
    before = [run(0, 0, 1) for _ in range(24)]
    at = 0
    while at < 4000:
        n = min(max(1, pace.budget(pace.seconds(1, 1, is_own), at, is_own)), 4000 - at)
        gaps.append(run(at, n, 1))
        at += n
    usual = statistics.median(before)
    return [gap / usual for gap in gaps]
