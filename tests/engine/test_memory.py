"""What the slots take at most: weights and the state that was computed, and little more."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.engine.bench import Bench
from tests.models import tiny

N_LAYERS = 16
BYTES_PER_TOKEN = N_LAYERS * 2 * 2 * (tiny.HIDDEN // 4) * 4
"""Keys and values of two heads in 32-bit floats."""
N_SLOTS, N_PROMPT, N_PREDICT = 8, 305, 12
SIZES = {"n_slots": N_SLOTS, "n_ctx": N_SLOTS * 1024, "n_ctx_slot": 1024, "n_batch": 32, "n_ubatch": 32}


@pytest.fixture
def bench() -> Iterator[Bench]:
    started = Bench(lambda: tiny.llama(num_hidden_layers=N_LAYERS), **SIZES)
    yield started
    started.close()
    assert started.errors == []


def peak_of(bench: Bench, n_predict: int) -> int:
    """Bytes beyond what was there before, at the most, while all slots run."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for i in range(N_SLOTS):
        bench.submit(i, [(i * 31 + j * 7) % tiny.VOCAB for j in range(N_PROMPT)], n_predict=n_predict)
    assert all(len(tokens) == n_predict for tokens in bench.finish(*range(N_SLOTS)))
    return mx.get_peak_memory() - before


def test_the_peak_of_full_slots_is_the_state_that_was_computed(bench: Bench) -> None:
    bench.submit(100, range(1, 20), n_predict=4)  # whatever is made once only
    bench.finish(100)
    computed = N_SLOTS * (N_PROMPT + N_PREDICT - 1) * BYTES_PER_TOKEN
    assert peak_of(bench, N_PREDICT) <= 1.1 * computed


def test_growing_while_tokens_are_made_does_not_double_the_state(bench: Bench) -> None:
    n_predict = 100
    computed = N_SLOTS * (N_PROMPT + n_predict - 1) * BYTES_PER_TOKEN
    assert peak_of(bench, n_predict) <= 1.25 * computed


def test_the_snapshot_tells_what_is_taken(bench: Bench) -> None:
    before = bench.engine.snapshot().memory
    bench.submit(0, range(200), n_predict=4)
    bench.finish(0)
    after = bench.engine.snapshot().memory
    assert after.active - before.active >= 200 * BYTES_PER_TOKEN
    assert after.peak >= after.active
