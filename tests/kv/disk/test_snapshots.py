"""State that cannot be cut, through the disk: every kind of model goes on as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from mlxserver.kv.identity import BASE_IDENTITY
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.models.caches import cache_maker
from tests.kv.disk.spans import opened, span_of
from tests.models import tiny

F32 = KV_TYPES["f32"]
PROMPT = [(11 * i + 5) % 250 for i in range(75)]


def evaluate(module: Any, states: SlotStates, tokens: list[int]) -> mx.array:
    """Logits of the last token of slot 0."""
    logits: mx.array = module(mx.array([tokens]), cache=states.prompt_chunk(0, len(tokens)))
    mx.eval(logits, states.arrays())
    return logits[0, -1]


def states_of(module: Any) -> SlotStates:
    return SlotStates(cache_maker(module), 1, F32, F32)


@pytest.mark.parametrize("n", [32, 40, 64, 70])
@pytest.mark.parametrize("kind", sorted(tiny.ALL))
def test_a_model_goes_on_from_the_disk(tmp_path: Path, kind: str, n: int) -> None:
    module = tiny.ALL[kind]()
    first = states_of(module)
    with opened(tmp_path) as store:
        for end in (20, n):  # two positions that a later prompt may go on from
            start = first.length(0)
            evaluate(module, first, PROMPT[start:end])
            tokens, snapshot = PROMPT[:end], first.read_snapshot(0)
            missing = store.missing(BASE_IDENTITY, tokens, has_snapshot=snapshot is not None)
            assert missing
            store.put(BASE_IDENTITY, tokens, missing.start, first.read_span(0, missing.start, end), snapshot)
            assert not store.missing(BASE_IDENTITY, tokens, has_snapshot=snapshot is not None), "it is queued"
        uninterrupted = evaluate(module, first, PROMPT[n:])

    module = tiny.ALL[kind]()
    second = states_of(module)
    with opened(tmp_path) as store:
        assert not store.missing(BASE_IDENTITY, PROMPT[:n], has_snapshot=not second.is_plain)
        earlier = store.find(BASE_IDENTITY, PROMPT[:n][:-1], cuts=second.is_plain)
        assert earlier.n == (n - 1 if second.is_plain else 20)
        match = store.find(BASE_IDENTITY, PROMPT, cuts=second.is_plain)
        assert match.n == n and (match.snapshot is None) == second.is_plain
        for block in map(store.read, match.blocks):
            assert second.fits(block.span, block.end - block.start)
            second.write_span(0, block.start, block.span)
        if match.snapshot is not None:
            stored = store.read(match.snapshot)
            snapshot = second.snapshot_of(stored.states)
            assert (stored.end, stored.span) == (n, KVSpan(())) and snapshot is not None
            second.write_snapshot(0, n, snapshot)
    assert second.length(0) == n
    assert mx.allclose(evaluate(module, second, PROMPT[n:]), uninterrupted, atol=1e-5)


@pytest.mark.parametrize("kind", ["gemma3", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1"])
def test_a_row_that_leaves_a_batch_is_stored(tmp_path: Path, kind: str) -> None:
    """Its caches were taken out of mlx-lm's batch caches."""
    module = tiny.ALL[kind]()
    states = SlotStates(cache_maker(module), 2, F32, F32)
    for slot, n in enumerate((40, 25)):
        module(mx.array([PROMPT[:n]]), cache=states.prompt_chunk(slot, n))
    for i in range(3):
        slots = states.arrange([0, 1])
        module(mx.array([[PROMPT[(40, 25)[slot] + i]] for slot in slots]), cache=states.decode(slots))
    mx.eval(states.arrays())
    snapshot = states.read_snapshot(1)
    assert snapshot is not None
    with opened(tmp_path) as store:
        assert store.put(BASE_IDENTITY, PROMPT[:28], 0, states.read_span(1, 0, 28), snapshot)
        assert store.flush(10)
        assert store.stats().failed == 0
        ref = store.find(BASE_IDENTITY, PROMPT, cuts=False).snapshot
        assert ref is not None and ref.end == 28
        found = states.snapshot_of(store.read(ref).states)
    assert found is not None and same([c.state for c in found.caches], [c.state for c in snapshot.caches])


def filled(cache: Any, n: int) -> Any:
    for i in range(n):
        row = mx.broadcast_to(mx.array(float(i)), (1, 2, 1, 4))
        cache.update_and_fetch(row, -row)
    return cache


def arrays() -> ArraysCache:
    cache = ArraysCache(3, left_padding=[2])
    cache[0], cache[2] = mx.arange(6).reshape(1, 2, 3).astype(mx.bfloat16), mx.ones((1, 4))
    return cache


CACHES = {
    "window": lambda: filled(RotatingKVCache(8), 5),
    "window that has wrapped": lambda: filled(RotatingKVCache(8, keep=2), 21),
    "empty window": lambda: RotatingKVCache(8),
    "chunked": lambda: filled(ChunkedKVCache(8), 30),
    "arrays": arrays,
    "list": lambda: CacheList(filled(RotatingKVCache(8), 11), filled(KVCache(), 3), arrays()),
}


def leaves(state: Any) -> list[mx.array]:
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in leaves(part)]
    return [state] if isinstance(state, mx.array) else []


def same(a: Any, b: Any) -> bool:
    if isinstance(a, mx.array):
        return (a.shape, a.dtype) == (b.shape, b.dtype) and bool(mx.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("kind", CACHES)
def test_the_state_of_every_cache_class(tmp_path: Path, kind: str) -> None:
    cache = CACHES[kind]()
    mx.eval(leaves(cache.state))
    tokens = PROMPT[:40]
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, tokens, 0, span_of(tokens), KVSnapshot((cache, cache)))
    with opened(tmp_path) as store:
        ref = store.find(BASE_IDENTITY, tokens, cuts=False).snapshot
        assert ref is not None
        states = store.read(ref).states
    assert len(states) == 2 and same(states[0], cache.state) and same(states[1], cache.state)
    fresh = type(cache).from_state(states[0])
    assert same(fresh.state, cache.state)


def test_a_snapshot_needs_its_blocks(tmp_path: Path) -> None:
    """Blocks alone restore nothing where state cannot be cut, and a snapshot alone is never written."""
    cache = filled(RotatingKVCache(8), 9)
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, PROMPT[:40], 0, span_of(PROMPT[:40]))
        assert store.flush(10)
        assert store.find(BASE_IDENTITY, PROMPT, cuts=False).n == 0
        missing = store.missing(BASE_IDENTITY, PROMPT[:70], has_snapshot=True)
        assert (missing.start, missing.snapshot) == (32, True)
        span = span_of(PROMPT[:70], 64)
        store.put(BASE_IDENTITY, PROMPT[:70], 64, span, KVSnapshot((cache,)))
        assert store.flush(10)
        assert (store.stats().snapshots, store.stats().dropped) == (0, 2)
