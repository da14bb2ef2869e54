"""Chunks beside streams are as long as a few decode steps, by the measured times."""

from __future__ import annotations

import pytest

from mlxserver.engine.pace import PROMPT_SHARE, SMALLEST_CHUNK, Pace


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


def test_before_anything_ran_chunks_beside_streams_are_small() -> None:
    assert Pace().budget(True, 2048) == 2 * SMALLEST_CHUNK
    assert Pace().budget(False, 2048) == 2048


def test_alone_a_step_ends_within_about_a_second() -> None:
    pace = Pace()
    pace.ran(2.0, 1000, 0)
    assert pace.budget(False, 4096) == 500
