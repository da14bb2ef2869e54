"""Stored spans at other positions, for every KV type, and what cannot move."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSpan
from mlxserver.models.caches import cache_maker
from mlxserver.models.rotary import CannotShift, find_rotations
from tests.models import tiny

TOKENS = list(range(3, 43))
BY = 17


def states(module: Any, kind: str = "f32", swa_full: bool = False) -> SlotStates:
    types = KV_TYPES[kind], KV_TYPES[kind]
    return SlotStates(cache_maker(module, swa_full), 2, *types, lambda: find_rotations(module, 512))


def evaluated(module: Any, held: SlotStates, slot: int, tokens: list[int]) -> None:
    module(mx.array([tokens]), cache=held.prompt_chunk(slot, len(tokens)))
    mx.eval(held.arrays())


def numbers(held: SlotStates, span: KVSpan, kind: str) -> list[tuple[mx.array, mx.array]]:
    decode = KV_TYPES[kind].decode
    return [(decode(keys, mx.float32), decode(values, mx.float32)) for keys, values in span.layers]


def furthest(a: list[tuple[mx.array, mx.array]], b: list[tuple[mx.array, mx.array]], layers: int) -> float:
    pairs = [pair for x, y in zip(a[:layers], b[:layers], strict=True) for pair in zip(x, y, strict=True)]
    return max(float(mx.abs(x - y).max().item()) for x, y in pairs)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        *(("wide", kind) for kind in ("f32", "f16", "bf16", "q8_0", "q5_1", "q4_0")),
        *(("deepseek_v3", kind) for kind in ("f32", "f16", "bf16")),
    ],
)
def test_the_first_layer_is_the_fresh_one_within_its_type(kind: str, model: str) -> None:
    """Layer 0 depends on no context. What is quantised anew is as far off as two roundings of its type."""
    module = tiny.llama(head_dim=32) if model == "wide" else tiny.deepseek_v3()
    held = states(module, kind)
    evaluated(module, held, 0, [9] * BY + TOKENS)
    evaluated(module, held, 1, TOKENS)
    old, fresh = held.read_span(0, BY, BY + 40), held.read_span(1, 0, 40)
    moved = held.moved(old, BY, 0)
    assert moved.nbytes == old.nbytes
    want = numbers(held, fresh, kind)
    largest = max(float(mx.abs(array).max().item()) for array in want[0])
    one_rounding = {"f32": 1e-6, "f16": 5e-4, "bf16": 4e-3, "q8_0": 4e-3, "q5_1": 0.033, "q4_0": 0.067}[kind]
    assert furthest(numbers(held, moved, kind), want, layers=1) < 2.5 * one_rounding * largest
    assert furthest(numbers(held, old, kind), want, layers=1) > 0.3 * largest, "unmoved ones would pass"


def test_back_and_forth_gives_the_span_again() -> None:
    module = tiny.qwen3()
    held = states(module)
    evaluated(module, held, 0, TOKENS)
    span = held.read_span(0, 0, 40)
    there_and_back = held.moved(held.moved(span, 0, 400), 400, 0)
    assert furthest(numbers(held, there_and_back, "f32"), numbers(held, span, "f32"), layers=2) < 2e-6


def test_discarding_moves_what_is_behind() -> None:
    module = tiny.llama(num_hidden_layers=1)
    held = states(module)
    evaluated(module, held, 0, TOKENS)
    held.discard(0, 5, 12)
    evaluated(module, held, 1, TOKENS[:5] + TOKENS[17:])
    assert held.length(0) == 28
    left, fresh = held.read_span(0, 0, 28), held.read_span(1, 0, 28)
    assert furthest(numbers(held, left, "f32"), numbers(held, fresh, "f32"), layers=1) < 1e-6


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("gemma3", r"RotatingKVCache cannot shift: a sliding window overwrites keys .*--swa-full"),
        ("mamba2", r"ArraysCache cannot shift: recurrent state"),
        ("qwen3_next", r"ArraysCache cannot shift: recurrent state"),
        ("falcon_h1", r"CacheList cannot shift: no operation moves its state"),
    ],
)
def test_what_cannot_move_names_its_class_and_the_operation(model: str, reason: str) -> None:
    held = states(getattr(tiny, model)())
    with pytest.raises(CannotShift, match=reason):
        held.moved(KVSpan(()), 0, 1)
    assert held.cannot_shift


def test_full_windows_can_move() -> None:
    assert states(tiny.gemma3(), swa_full=True).cannot_shift == ""


def test_the_model_s_own_reason() -> None:
    gpt2 = {
        "n_ctx": 256,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 256,
        "layer_norm_epsilon": 1e-5,
    }
    module = tiny.build("gpt2", vocab_size=256, **gpt2)
    assert states(module).cannot_shift.startswith("KVCache cannot shift: gpt2: no rotary position embedding")
