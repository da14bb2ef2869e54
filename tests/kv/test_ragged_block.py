"""Tokens of several slots in one pass, unpadded, leave what each slot's own passes leave."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from mlxserver.models.ragged import fit_for_ragged_passes
from tests.models import tiny

N_SLOTS = 6
TOKENS = [[(3 * slot + 7 * i) % tiny.VOCAB for i in range(100)] for slot in range(N_SLOTS)]
KINDS = [(kind, "f32", "f32") for kind in ("llama", "qwen3", "mixtral")]
KINDS += [("llama", "f16", "bf16"), ("qwen3", "q8_0", "q4_0")]

SINGLE = {1: 9, 2: 30, 0: 20}
"""Slot -> tokens that it holds in the pass before it takes one; slot 0 gets those of its chunk there."""
CHUNKS = {3: (7, 13), 0: (5, 15), 5: (70, 1)}
"""Slot -> (tokens that it holds, tokens of its chunk)."""


def states_of(module: Any, key_type: str = "f32", value_type: str = "f32", **fields: Any) -> SlotStates:
    states = SlotStates(cache_maker(module, **fields), N_SLOTS, KV_TYPES[key_type], KV_TYPES[value_type])
    held = {slot: CHUNKS[slot][0] if slot in CHUNKS else SINGLE[slot] for slot in {*SINGLE, *CHUNKS}}
    for slot, n in held.items():
        module(mx.array([TOKENS[slot][:n]]), cache=states.prompt_chunk(slot, n))
    return states


def apart(module: Any, states: SlotStates) -> tuple[list[mx.array], list[mx.array]]:
    """Logits of each chunk, and of each slot's one token."""
    chunks = []
    for slot, (start, n) in CHUNKS.items():
        part = mx.array([TOKENS[slot][start : start + n]])
        chunks.append(module(part, cache=states.prompt_chunk(slot, n))[0])
    singles = [
        module(mx.array([[TOKENS[slot][n]]]), cache=states.prompt_chunk(slot, 1))[0]
        for slot, n in SINGLE.items()
    ]
    return chunks, singles


def together(module: Any, states: SlotStates, **fields: Any) -> tuple[list[int], mx.array]:
    """The slots in the order of their one tokens, and the logits (N, n_vocab)."""
    order = states.arrange(list(SINGLE))
    caches = states.ragged(order, [(slot, n) for slot, (_, n) in CHUNKS.items()], **fields)
    tokens = [TOKENS[slot][SINGLE[slot]] for slot in order]
    for slot, (start, n) in CHUNKS.items():
        tokens += TOKENS[slot][start : start + n]
    return order, module(mx.array(tokens)[:, None], cache=caches)[:, 0]


@pytest.mark.parametrize(("kind", "key_type", "value_type"), KINDS)
def test_state_and_logits_are_those_of_passes_apart(kind: str, key_type: str, value_type: str) -> None:
    """Rows in any order, unequal starts and lengths, a slot whose one token is behind its chunk."""
    module = tiny.ALL[kind](**({"head_dim": 32} if kind == "qwen3" else {}))
    fit_for_ragged_passes(module)
    alone, one = states_of(module, key_type, value_type), states_of(module, key_type, value_type)
    chunks, singles = apart(module, alone)
    order, found = together(module, one)
    in_order = [singles[list(SINGLE).index(slot)] for slot in order]
    assert mx.allclose(found, mx.concatenate([*in_order, *chunks]), atol=1e-3, rtol=1e-3).item()
    for slot in range(N_SLOTS):
        n = alone.length(slot)
        assert one.length(slot) == n
        if n == 0:
            continue
        spans = [states.read_span(slot, 0, n).layers for states in (one, alone)]
        for ours, theirs in zip(*spans, strict=True):
            for a, b in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True):
                assert a.shape == b.shape
                if "q" not in key_type:
                    assert mx.allclose(a, b, atol=2e-2 if value_type == "bf16" else 1e-4).item()


def test_a_window_hides_columns_there_too() -> None:
    module = tiny.mistral_sliding()
    fit_for_ragged_passes(module)
    alone, one = states_of(module, swa_full=True), states_of(module, swa_full=True)
    chunks, singles = apart(module, alone)
    order, found = together(module, one)
    in_order = [singles[list(SINGLE).index(slot)] for slot in order]
    assert mx.allclose(found, mx.concatenate([*in_order, *chunks]), atol=1e-4).item()


def test_logits_are_made_of_as_many_rows_as_are_read() -> None:
    module = tiny.llama()
    fit_for_ragged_passes(module)
    _, every = together(module, states_of(module))
    _, few = together(module, states_of(module), n_read=len(SINGLE))
    assert few.shape == (len(SINGLE), tiny.VOCAB)
    assert mx.allclose(few, every[: len(SINGLE)], atol=1e-5).item()


def test_what_failed_can_be_taken_back() -> None:
    module = tiny.llama()
    fit_for_ragged_passes(module)
    alone, one = states_of(module), states_of(module)
    lengths = {slot: one.length(slot) for slot in range(N_SLOTS)}
    together(module, one)
    one.undo(lengths)
    assert {slot: one.length(slot) for slot in range(N_SLOTS)} == lengths
    expected, found = apart(module, alone), apart(module, one)
    for a, b in zip((*expected[0], *expected[1]), (*found[0], *found[1]), strict=True):
        assert mx.allclose(a, b, atol=1e-5).item()
