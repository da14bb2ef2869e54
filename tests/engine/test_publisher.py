"""What is read from disk gets into the trie whole, without a gap, and only in this model's shapes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.disk_tier import Part
from mlxserver.engine.prompt_speed import MOST_PASS_TOKENS, prompt_speed
from mlxserver.engine.publisher import Publisher, Restored, joined
from mlxserver.kv.identity import BASE_IDENTITY
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.trie import PrefixTrie
from mlxserver.models.caches import cache_maker
from tests.models import tiny

TOKENS = tuple(range(64))


class Desk:
    """A model whose slot 0 holds the state of ``TOKENS``."""

    def __init__(self, make: Any = tiny.llama, kv_type: str = "f32", limit: int | None = None) -> None:
        module = make()
        self.states = SlotStates(cache_maker(module), 1, KV_TYPES[kv_type], KV_TYPES[kv_type])
        module(mx.array([TOKENS]), cache=self.states.prompt_chunk(0, len(TOKENS)))
        self.trie = PrefixTrie(limit)
        self.publisher = Publisher(self.states, self.trie)

    def part(self, start: int, end: int, with_snapshot: bool = False) -> Part:
        span = self.states.read_span(0, start, end) if start < end else KVSpan(())
        snapshot = self.states.read_snapshot(0) if with_snapshot else None
        states = tuple(cache.state for cache in snapshot.caches) if snapshot else None
        return Part(start, end, 1, span.nbytes, Restored(span, states), states is not None)

    def publish(self, *parts: Part) -> Any:
        return self.publisher.publish(BASE_IDENTITY, TOKENS, parts)

    def held(self) -> int:
        return self.trie.match(BASE_IDENTITY, TOKENS).n


def test_parts_one_after_the_other() -> None:
    desk = Desk()
    assert desk.publish(desk.part(0, 32)).end == 32
    node = desk.publish(desk.part(32, 50))
    assert (node.end, node.start, desk.held()) == (50, 32, 50)
    want = desk.states.read_span(0, 32, 50)
    assert all(mx.array_equal(a[0][0], b[0][0]) for a, b in zip(node.span.layers, want.layers, strict=True))
    desk.trie.check()


def test_what_memory_has_of_a_part_meanwhile_is_not_taken_twice() -> None:
    desk = Desk()
    desk.publish(desk.part(0, 40))
    node = desk.publish(desk.part(32, 64))
    assert (node.start, node.end) == (40, 64)
    want = desk.states.read_span(0, 40, 64)
    assert mx.array_equal(node.span.layers[0][0][0], want.layers[0][0][0])
    assert desk.publish(desk.part(0, 64)) is node


def test_no_part_gets_in_behind_a_gap() -> None:
    desk = Desk()
    assert desk.publish(desk.part(32, 64)) is None
    assert desk.held() == 0


def test_no_room_is_no_error() -> None:
    desk = Desk(limit=100)
    assert desk.publish(desk.part(0, 64)) is None


@pytest.mark.parametrize(("make", "kv_type"), [(tiny.llama, "f16"), (lambda: tiny.llama(head_dim=32), "f32")])
def test_state_of_another_shape_or_type_is_refused(make: Any, kv_type: str) -> None:
    desk, stranger = Desk(), Desk(make, kv_type)
    with pytest.raises(ValueError, match="not this model's"):
        desk.publish(stranger.part(0, 32))
    assert desk.held() == 0


def test_of_a_hybrid_a_snapshot_may_come_behind_what_memory_has() -> None:
    desk = Desk(tiny.qwen3_next)
    desk.publish(desk.part(0, 32), desk.part(32, 64))
    node = desk.publish(desk.part(64, 64, with_snapshot=True))
    assert node.end == 64 and node.snapshot is not None
    desk.trie.check()


def test_of_a_hybrid_a_snapshot_alone_is_nothing() -> None:
    desk = Desk(tiny.qwen3_next)
    snapshot = desk.part(0, 64, with_snapshot=True).state.states
    assert desk.publish(Part(32, 64, 1, 1, Restored(KVSpan(()), snapshot), True)) is None
    assert desk.held() == 0


def test_of_a_model_without_plain_attention_the_snapshot_is_all() -> None:
    desk = Desk(tiny.mamba2)
    node = desk.publish(desk.part(64, 64, with_snapshot=True))
    assert node.end == 64 and node.snapshot is not None


def test_spans_in_bfloat16_are_joined_exactly() -> None:
    desk = Desk(kv_type="bf16")
    whole = desk.states.read_span(0, 0, 64)
    again = joined([desk.states.read_span(0, start, start + 16) for start in range(0, 64, 16)])
    for one, other in zip(whole.layers, again.layers, strict=True):
        assert mx.array_equal(one[0][0], other[0][0]) and mx.array_equal(one[1][0], other[1][0])


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba2", "falcon_h1"])
def test_the_model_s_speed_leaves_no_state(kind: str) -> None:
    module = getattr(tiny, kind)()
    states = SlotStates(cache_maker(module), 1, KV_TYPES["f32"], KV_TYPES["f32"])
    speed = prompt_speed(module, states)
    assert 0 < speed.seconds_per_token < 1 and 0 <= speed.pass_tokens <= MOST_PASS_TOKENS
    assert states.length(0) == 0
