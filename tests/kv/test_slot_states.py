"""A slot's state gives the same tokens alone, in a batch, after moves, cuts and copies."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.models import tiny

KINDS = [
    "llama",
    "qwen3",
    "mistral_sliding",
    "gemma3",
    "gpt_oss",
    "mamba2",
    "qwen3_next",
    "falcon_h1",
    "deepseek_v3",
]
F32 = KV_TYPES["f32"]
PLAIN = ["llama", "qwen3", "deepseek_v3"]
PROMPTS = [
    [5, 17, 200, 33, 8],
    [90, 14, 3],
    list(range(40, 63)),
    [7] * 9 + [100, 101],
]


class Decoder:
    """Greedy decoding over SlotStates, the way the runner does it."""

    def __init__(self, module: Any, n_slots: int) -> None:
        self.module = module
        self.states = SlotStates(cache_maker(module), n_slots, F32, F32)
        self.last: dict[int, int] = {}

    def start(self, slot: int, prompt: list[int], chunk: int = 512) -> None:
        for i in range(0, len(prompt) - 1, chunk):
            part = prompt[i : min(i + chunk, len(prompt) - 1)]
            self.module(mx.array([part]), cache=self.states.prompt_chunk(slot, len(part)))
            mx.eval(self.states.arrays())
        self.last[slot] = prompt[-1]

    def step(self, slots: list[int]) -> dict[int, int]:
        order = self.states.arrange(slots)
        tokens = mx.array([[self.last[slot]] for slot in order])
        logits = self.module(tokens, cache=self.states.decode(order))[:, -1]
        found = dict(zip(order, mx.argmax(logits, axis=-1).tolist(), strict=True))
        self.last.update(found)
        return found


def alone(module: Any, prompt: list[int], n: int) -> list[int]:
    """The oracle: mlx-lm's own caches and a batch of 1."""
    cache = cache_maker(module)()
    tokens, out = prompt, []
    for _ in range(n):
        logits = module(mx.array([tokens]), cache=cache)[:, -1]
        tokens = [mx.argmax(logits, axis=-1).item()]
        out += tokens
    return out


@pytest.fixture(scope="module", params=KINDS)
def module(request: pytest.FixtureRequest) -> Any:
    return getattr(tiny, request.param)()


@pytest.fixture(scope="module", params=PLAIN)
def plain(request: pytest.FixtureRequest) -> Any:
    return getattr(tiny, request.param)()


def test_batch_of_four_equals_alone(module: Any) -> None:
    want = [alone(module, prompt, 24) for prompt in PROMPTS]
    decoder = Decoder(module, 4)
    for slot, prompt in enumerate(PROMPTS):
        decoder.start(slot, prompt, chunk=7)
    steps = [decoder.step([0, 1, 2, 3]) for _ in range(24)]
    assert [[step[slot] for step in steps] for slot in range(4)] == want


def test_joining_and_leaving_change_nothing(module: Any) -> None:
    want = {slot: alone(module, prompt, 20) for slot, prompt in enumerate(PROMPTS)}
    got: dict[int, list[int]] = {slot: [] for slot in want}
    decoder = Decoder(module, 4)
    schedule = [[3], [3, 0], [3, 0], [0], [0, 2], [0, 1, 2, 3], [1, 3], [1, 3], [2], [0, 3], [0, 1, 2, 3]] * 3
    for slots in schedule:
        for slot in slots:
            if slot not in decoder.last:
                decoder.start(slot, PROMPTS[slot])
        for slot, token in decoder.step(slots).items():
            got[slot].append(token)
    for slot, tokens in got.items():
        assert len(tokens) >= 9
        assert tokens[:20] == want[slot][: len(tokens)]


def test_copied_state_goes_its_own_way(module: Any) -> None:
    decoder = Decoder(module, 3)
    decoder.start(2, PROMPTS[0])
    decoder.states.copy(2, 0, 0, len(PROMPTS[0]) - 1, 0)
    decoder.last[0] = PROMPTS[0][-1]
    for _ in range(3):
        decoder.step([0])
    decoder.start(1, PROMPTS[1])
    steps = [decoder.step([0, 1, 2]) for _ in range(8)]
    assert [step[2] for step in steps] == alone(module, PROMPTS[0], 8)
    assert [step[0] for step in steps] == alone(module, PROMPTS[0], 11)[3:]


@pytest.mark.parametrize("keep", [0, 1, 13, 21, 22])
def test_truncated_plain_state_continues_exactly(plain: Any, keep: int) -> None:
    prompt = PROMPTS[2]
    decoder = Decoder(plain, 2)
    decoder.start(0, prompt)
    assert decoder.states.can_truncate(0, keep)
    decoder.states.truncate(0, keep)
    assert decoder.states.length(0) == keep
    other = prompt[:keep] + [250, 251, 252]
    decoder.states.arrange([0])
    part = other[keep:-1]
    plain(mx.array([part]), cache=decoder.states.prompt_chunk(0, len(part)))
    decoder.last[0] = other[-1]
    assert [decoder.step([0])[0] for _ in range(8)] == alone(plain, other, 8)


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next", "falcon_h1"])
def test_recurrent_state_cannot_be_cut(kind: str) -> None:
    decoder = Decoder(getattr(tiny, kind)(), 2)
    decoder.start(0, PROMPTS[2])
    assert not decoder.states.can_truncate(0, 10)
    with pytest.raises(ValueError, match="cannot be cut from 22 to 10"):
        decoder.states.truncate(0, 10)
    decoder.states.truncate(0, 0)
    decoder.start(0, PROMPTS[1])
    assert [decoder.step([0])[0] for _ in range(5)] == alone(decoder.module, PROMPTS[1], 5)


@pytest.mark.parametrize("kind", ["mistral_sliding", "gemma3"])
def test_window_can_be_cut_before_it_wraps_only(kind: str) -> None:
    decoder = Decoder(getattr(tiny, kind)(), 2)
    decoder.start(0, PROMPTS[3])
    assert len(PROMPTS[3]) < tiny.WINDOW
    decoder.states.truncate(0, 4)
    other = PROMPTS[3][:4] + [50, 60, 70]
    decoder.module(mx.array([other[4:-1]]), cache=decoder.states.prompt_chunk(0, 2))
    decoder.last[0] = other[-1]
    assert [decoder.step([0])[0] for _ in range(5)] == alone(decoder.module, other, 5)
    decoder.start(1, list(range(100, 100 + tiny.WINDOW + 6)))
    assert not decoder.states.can_truncate(1, 5)


def test_16_bit_types_are_stored_as_such() -> None:
    module = tiny.llama()
    states = SlotStates(cache_maker(module), 1, KV_TYPES["f16"], KV_TYPES["bf16"])
    module(mx.array([[1, 2, 3]]), cache=states.prompt_chunk(0, 3))
    assert {array.dtype for array in states.arrays()} == {mx.float16, mx.bfloat16}


def test_buffers_grow_with_the_longest_slot() -> None:
    module = tiny.llama()
    decoder = Decoder(module, 2)
    decoder.start(0, [i % 250 for i in range(255)])
    for _ in range(4):
        decoder.step([0])
    columns = {array.shape[2] for array in decoder.states.arrays()}
    assert columns == {320}


def test_a_slot_is_never_longer_than_what_it_holds() -> None:
    module = tiny.llama()
    states = SlotStates(cache_maker(module), 2, F32, F32)
    module(mx.array([[1, 2, 3]]), cache=states.prompt_chunk(0, 3))
    span = states.read_span(0, 0, 3)
    with pytest.raises(ValueError, match="holds 3 tokens"):
        states.truncate(0, 4)
    with pytest.raises(ValueError, match="holds 0 tokens"):
        states.write_span(1, 1, span)
    states.drop(0)
    with pytest.raises(ValueError, match="holds 0 tokens"):
        states.truncate(0, 2)
    assert [states.length(0), states.length(1)] == [0, 0]


def test_tokens_that_a_slot_does_not_hold_cannot_be_read_or_copied() -> None:
    decoder = Decoder(tiny.llama(), 2)
    decoder.start(0, PROMPTS[2])
    decoder.states.drop(0)
    with pytest.raises(ValueError, match="slot 0 holds 0 tokens, not 5"):
        decoder.states.read_span(0, 0, 5)
    with pytest.raises(ValueError, match="slot 0 holds 0 tokens, not 22"):
        decoder.states.copy(0, 1, 0, 22, 0)
    recurrent = Decoder(tiny.mamba2(), 2)
    recurrent.start(0, PROMPTS[2])
    with pytest.raises(ValueError, match="slot 0 is at 22 tokens, not at 7"):
        recurrent.states.copy(0, 1, 0, 7, 0)


@pytest.mark.parametrize("kind", ["mistral_sliding", "gemma3", "gpt_oss"])
def test_full_windows_can_be_cut_anywhere(kind: str) -> None:
    """``--swa-full``: all tokens are kept and the mask hides those outside the window."""
    module = getattr(tiny, kind)()
    decoder = Decoder(module, 2)
    decoder.states = SlotStates(cache_maker(module, swa_full=True), 2, F32, F32)
    assert decoder.states.is_plain
    long = [(7 * i) % 250 for i in range(3 * tiny.WINDOW)]
    decoder.start(0, long)
    decoder.states.truncate(0, tiny.WINDOW + 5)
    other = long[: tiny.WINDOW + 5] + [9, 8, 7]
    module(mx.array([[9, 8]]), cache=decoder.states.prompt_chunk(0, 2))
    decoder.last[0] = 7
    decoder.start(1, PROMPTS[1])
    steps = [decoder.step([0, 1]) for _ in range(8)]
    assert [step[0] for step in steps] == alone(module, other, 8)
    assert [step[1] for step in steps] == alone(module, PROMPTS[1], 8)
