"""Chunks beside streams are as long as a few decode steps, by the measured times."""

from __future__ import annotations

import pytest

from mlxserver.engine.pace import LONGEST_CHUNK_SECONDS, PROMPT_SHARE, SMALLEST_CHUNK, Pace


def learned(decode: float, per_token: float) -> Pace:
    pace = Pace()
    for _ in range(20):
        pace.ran(decode, 0, 4)
        pace.ran(decode + 64 * per_token, 64, 4)
    return pace


def test_a_chunk_takes_its_share_of_decode_steps() -> None:
    pace = learned(decode=0.1, per_token=0.002)
    assert pace.budget(True, 2048) == pytest.approx(PROMPT_SHARE * 0.1 / 0.002, abs=2)


def test_slow_prompts_still_go_on_and_fast_ones_stay_within_the_batch() -> None:
    assert learned(0.05, 1.0).budget(True, 2048) == SMALLEST_CHUNK
    assert learned(0.1, 1e-6).budget(True, 512) == 512


def test_before_anything_ran_chunks_are_small() -> None:
    assert Pace().budget(True, 2048) == Pace().budget(False, 2048) == 2 * SMALLEST_CHUNK


def test_alone_a_step_ends_soon() -> None:
    pace = Pace()
    pace.ran(2.0, 1000, 0)
    assert pace.budget(False, 4096) == LONGEST_CHUNK_SECONDS / 2.0 * 1000


def test_a_rise_is_followed_at_once() -> None:
    pace = learned(decode=0.1, per_token=0.002)
    pace.ran(0.1 + 64 * 0.004, 64, 4)
    assert pace.budget(True, 2048) == pytest.approx(PROMPT_SHARE * 0.1 / 0.004, abs=2)
