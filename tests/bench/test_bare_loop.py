from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from bench.bare_loop import LOOPS, decode_rate, eager, next_tokens
from tests.models import tiny

PROMPTS = mx.array([[5, 17, 200, 33, 8], [9, 9, 40, 41, 42]])
N_PREDICT = 12


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """The same graph, without the compiler's seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def test_every_loop_gives_the_same_tokens(uncompiled: None) -> None:
    model = tiny.llama()
    wanted = tokens(model, eager)
    assert len({tuple(row) for row in wanted}) > 4
    assert all(tokens(model, make) == wanted for make, _ in LOOPS.values())


def tokens(model: Any, make: Any) -> list[list[int]]:
    cache = make_prompt_cache(model)
    found = [next_tokens(model, PROMPTS, cache)]
    step = make(model, cache, N_PREDICT)
    for _ in range(N_PREDICT):
        found.append(step(found[-1]))
    return mx.stack(found).tolist()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rate_is_measured(loop: str, uncompiled: None) -> None:
    assert decode_rate(tiny.llama(), [1, 2, 3], 2, 3, loop) > 0
