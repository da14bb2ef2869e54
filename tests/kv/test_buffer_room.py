"""Buffers grow at once, or layer by layer over several calls; what they hold stays."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlxserver.kv.buffer_room import MOST_AT_ONCE, BufferRoom
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.memory import MemoryBudget, MemoryCosts, OutOfMemory
from mlxserver.kv.slot_kv import SlotKV

N_LAYERS, HEADS, WIDTH = 3, 2, 4


def layers() -> list[SlotKV]:
    found = [SlotKV(KV_TYPES["f32"], KV_TYPES["f32"]) for _ in range(N_LAYERS)]
    for number, layer in enumerate(found):
        part = mx.arange(HEADS * 5 * WIDTH, dtype=mx.float32).reshape(1, HEADS, 5, WIDTH) + number
        layer.write(0, 0, (part,), (part + 0.5,))
    return found


def shapes(held: list[SlotKV]) -> list[tuple[int, int]]:
    return [layer.shape for layer in held]


def test_all_grow_at_once() -> None:
    held = layers()
    BufferRoom(held, MemoryBudget(None)).make(2, 100)
    assert shapes(held) == [(2, 128)] * N_LAYERS


def test_with_no_time_one_layer_grows_in_a_call_and_the_first_one_last() -> None:
    held, before = layers(), layers()
    room = BufferRoom(held, MemoryBudget(None))
    seen = []
    while not seen or seen[-1][0] != (3, 128):
        room.make(3, 100, seconds=0)
        seen.append(shapes(held))
        assert room.is_even == (len(seen) == N_LAYERS)
    assert seen == [[(1, 64)] * (N_LAYERS - n) + [(3, 128)] * n for n in range(1, N_LAYERS + 1)]
    for layer, old in zip(held, before, strict=True):
        for new, known in zip(layer.read(0, 0, 5), old.read(0, 0, 5), strict=True):
            assert mx.array_equal(new[0], known[0])


def test_what_was_begun_is_ended_when_the_first_layer_grows() -> None:
    held = layers()
    room = BufferRoom(held, MemoryBudget(None))
    room.make(1, 200, seconds=0)
    room.make(1, 64)
    assert not room.is_even, "64 columns are there"
    room.make(2, 65)
    assert shapes(held) == [(2, 256)] * N_LAYERS


def test_only_large_growth_takes_long() -> None:
    held = layers()
    room = BufferRoom(held, MemoryBudget(None))
    nbytes = sum(layer.bytes_per_token for layer in held)
    n = MOST_AT_ONCE // nbytes // 64 * 64
    assert not room.takes_long(1, n) and room.takes_long(1, n + 1)
    room.make(1, n + 1)
    assert not room.takes_long(1, n + 1)
    assert not BufferRoom([], MemoryBudget(None)).takes_long(1, n + 1)


def test_each_call_asks_for_what_is_left() -> None:
    held = layers()
    budget = MemoryBudget(10**9, active=lambda: 0)
    budget.costs = MemoryCosts(kv=sum(layer.bytes_per_token for layer in held))
    room = BufferRoom(held, budget)
    whole = room.growth(1, 128)
    asked: list[int] = []
    budget.claim = lambda nbytes, what: asked.append(nbytes)  # type: ignore[method-assign]
    for _ in range(N_LAYERS + 1):
        room.make(1, 128, seconds=0)
    assert asked == pytest.approx([whole, whole * 2 / 3, whole / 3], abs=1)


def test_without_room_nothing_grows() -> None:
    held = layers()
    budget = MemoryBudget(1, active=lambda: 0)
    budget.costs = MemoryCosts(kv=100)
    with pytest.raises(OutOfMemory):
        BufferRoom(held, budget).make(1, 128, seconds=0)
    assert shapes(held) == [(1, 64)] * N_LAYERS
