"""State at other positions: exact where a model has one layer, never in an answer that did not ask for it."""

from __future__ import annotations

import random

import pytest

from tests.engine.bench import Bench
from tests.models import tiny
from tests.parity.test_reuse import BASE, Served

ONE_LAYER = {"num_hidden_layers": 1, "head_dim": 16}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 10000.0}


def served(kind: str, config: dict[str, object], **changes: object) -> Served:
    it = Served.__new__(Served)
    it.kind, it.ids = kind, iter(range(10**6))
    it.module = getattr(tiny, kind)(**config)
    it.bench = Bench(lambda: getattr(tiny, kind)(**config), **changes)
    return it


@pytest.mark.parametrize("config", [ONE_LAYER, ONE_LAYER | LINEAR, ONE_LAYER | {"rope_traditional": True}])
def test_one_layer_cannot_tell_moved_keys_from_fresh_ones(config: dict[str, object]) -> None:
    """Its keys and values depend on nothing but the token and the position."""
    it = served("llama", config)
    it.ask(BASE)
    for lo, hi in ((8, 20), (3, 4), (20, 30)):
        edited = BASE[:lo] + BASE[hi:] + [lo]
        tokens, reused = it.ask(edited, n_cache_reuse=4)
        assert reused == len(edited) - 1
        assert tokens == it.cold(edited)
    edited = BASE[:6] + BASE[12:22] + BASE[30:] + [9]
    tokens, reused = it.ask(edited, n_cache_reuse=4)
    assert (tokens, reused) == (it.cold(edited), len(edited) - 1)
    it.bench.close()


def test_two_runs_of_one_slot() -> None:
    it = served("llama", ONE_LAYER, n_slots=1, cache_ram=0)
    it.ask(BASE)
    edited = BASE[:6] + BASE[12:22] + BASE[30:] + [9]
    tokens, reused = it.ask(edited, n_cache_reuse=4)
    assert (tokens, reused) == (it.cold(edited), len(edited) - 1)
    it.bench.close()


def test_a_shifted_context_of_one_layer_goes_on_as_a_fresh_one() -> None:
    it = served("llama", ONE_LAYER, context_shift=True, n_ctx_slot=64, n_slots=1, n_ctx=64)
    n, seen = 150, list(BASE)
    tokens, _ = it.ask(BASE, n, n_keep=5, n_discard=11)
    for token in tokens:
        assert it.cold(seen, 1) == [token]
        if len(seen) + 1 >= 64:
            del seen[5:16]
        seen.append(token)
    it.bench.close()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "deepseek_v3", "mixtral"])
def test_exact_answers_among_moved_ones(kind: str) -> None:
    """Requests that allow moved keys, and contexts that shift, never change the answers of others."""
    it = served(kind, {}, n_slots=2, n_ctx=256, n_ctx_slot=128, context_shift=True)
    rng = random.Random(5)
    exact: list[tuple[list[int], int]] = []
    moved = 0
    for _ in range(40):
        lo, hi = sorted(rng.sample(range(4, 44), 2))
        prompt = BASE[:lo] + BASE[hi:] + [rng.randrange(250)]
        if rng.random() < 0.5:
            tokens, reused = it.ask(prompt, n_cache_reuse=4)
            moved += reused > lo
            if rng.random() < 0.3:
                it.ask(prompt + tokens, 110, n_cache_reuse=4)
        else:
            exact.append((prompt, it.send(prompt)))
    found = it.bench.finish(*(task_id for _, task_id in exact))
    assert moved > 3
    for (prompt, _), tokens in zip(exact, found, strict=True):
        assert tokens == it.cold(prompt)
    it.bench.close()
