"""A compiled decode step gives what an ordinary one gives, and is used only where that was seen at load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxserver.engine.batch_check import graphs_agree
from mlxserver.engine.compiled_steps import KEPT, CompiledSteps
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.memory import MemoryCosts, OutOfMemory
from mlxserver.kv.slot_kv import BlockShape
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.engine.bench import Bench, oracle
from tests.models import tiny

LENGTHS = (5, 3, 61)
"""The last one passes a column at which the graph changes."""
PLAIN = ("llama", "qwen3", "mixtral", "deepseek_v3")
OTHERS = ("gemma3", "mamba2", "qwen3_next")


def states_of(module: Any, key_type: str = "f32", value_type: str = "f32", n_slots: int = 4) -> SlotStates:
    return SlotStates(cache_maker(module), n_slots, KV_TYPES[key_type], KV_TYPES[value_type])


def filled(module: Any, states: SlotStates, lengths: tuple[int, ...] = LENGTHS) -> list[int]:
    """The slots 0, 1.. with prompts of these lengths, in the order of their rows."""
    for slot, n in enumerate(lengths):
        tokens = [(7 * slot + 3 * i) % tiny.VOCAB for i in range(n)]
        module(mx.array([tokens]), cache=states.prompt_chunk(slot, n))
    return states.arrange(range(len(lengths)))


def ordinary(module: Any, states: SlotStates, tokens: mx.array, order: list[int]) -> mx.array:
    logits: mx.array = module(tokens[:, None], cache=states.decode(order))[:, -1]
    return logits


@pytest.mark.parametrize("kv_types", [("f32", "f32"), ("f16", "f32"), ("bf16", "bf16")])
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("lengths", [LENGTHS, (62,), (9, 9, 9, 9)])
def test_logits_are_those_of_ordinary_steps(
    kind: str, kv_types: tuple[str, str], lengths: tuple[int, ...]
) -> None:
    module = tiny.ALL[kind]()
    expected, found = states_of(module, *kv_types), states_of(module, *kv_types)
    order = filled(module, expected, lengths)
    assert filled(module, found, lengths) == order
    steps = CompiledSteps(module, found, worth=0)
    for token in range(5):
        tokens = mx.array([token + i for i in range(len(order))])
        logits = steps.logits(tokens, order)
        assert logits is not None
        assert mx.allclose(logits, ordinary(module, expected, tokens, order), atol=1e-4).item()
    assert [found.length(slot) for slot in order] == [expected.length(slot) for slot in order]
    for slot in order:
        spans = (states.read_span(slot, 0, states.length(slot)) for states in (found, expected))
        for ours, theirs in zip(*(span.layers for span in spans), strict=True):
            for a, b in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
                assert mx.allclose(a, b, atol=2e-2 if "bf16" in kv_types else 1e-3).item()


def test_quantised_keys_and_values_are_compiled_too() -> None:
    module = tiny.qwen3(head_dim=32)
    expected, found = (states_of(module, "q8_0", "q4_0") for _ in range(2))
    order = filled(module, expected)
    filled(module, found)
    tokens = mx.array([1, 2, 3])
    logits = CompiledSteps(module, found, worth=0).logits(tokens, order)
    assert logits is not None
    assert mx.allclose(logits, ordinary(module, expected, tokens, order), atol=1e-4).item()


@pytest.mark.parametrize("kind", OTHERS)
def test_state_that_lies_in_no_plain_buffer_is_not_compiled(kind: str) -> None:
    module = tiny.ALL[kind]()
    states = states_of(module)
    order = filled(module, states, (5, 3))
    assert CompiledSteps(module, states, worth=0).logits(mx.array([1, 2]), order) is None
    assert [states.length(slot) for slot in range(2)] == [5, 3]
    assert not graphs_agree(module, states_of(module), 2)


def test_a_shape_is_compiled_once_it_has_lasted() -> None:
    module = tiny.llama()
    states = states_of(module)
    order = filled(module, states, (5, 3))
    steps = CompiledSteps(module, states, worth=2)
    tokens = mx.array([1, 2])
    made = []
    for _ in range(4):
        logits = steps.logits(tokens, order)
        made.append(logits is not None)
        if logits is None:
            ordinary(module, states, tokens, order)
    assert made == [False, False, True, True]
    assert steps.logits(tokens[:1], order[:1]) is None, "another shape"
    assert [states.length(slot) for slot in range(2)] == [9, 7]


def test_no_graph_is_made_where_none_may_be_and_those_that_are_there_are_used() -> None:
    module = tiny.llama()
    states = states_of(module)
    order = filled(module, states, (5, 3))
    steps = CompiledSteps(module, states, worth=0)
    tokens = mx.array([1, 2])
    made = [steps.logits(tokens, order, may_make) is not None for may_make in (False, True, False)]
    assert made == [False, True, True]
    assert [states.length(slot) for slot in range(2)] == [7, 5]


def test_the_first_token_of_all_is_not_compiled() -> None:
    module = tiny.llama()
    states = states_of(module)
    assert CompiledSteps(module, states, worth=0).logits(mx.array([1]), [0]) is None
    assert states.length(0) == 0


def test_a_step_that_finds_no_room_raises_and_later_ones_are_compiled() -> None:
    module = tiny.llama()
    states = states_of(module)
    order = filled(module, states, (62, 3))
    steps = CompiledSteps(module, states, worth=0)
    states.budget.limit, states.budget.costs = 1, MemoryCosts(kv=1)
    columns = states._plain[0].shape[1]
    wide = [columns] * 2
    lengths, states._length = states._length, [*wide, *states._length[2:]]
    with pytest.raises(OutOfMemory):
        steps.logits(mx.array([1, 2]), order)
    assert states._length[:2] == wide
    states._length, states.budget.limit = lengths, None
    assert steps.logits(mx.array([1, 2]), order) is not None


def test_shapes_that_are_gone_are_forgotten() -> None:
    module = tiny.llama(num_hidden_layers=1)
    states = states_of(module)
    filled(module, states, (1,))
    steps = CompiledSteps(module, states, worth=0)
    for n in range(KEPT + 2):
        states.prompt_chunk(0, 64, n_expected=64 * (KEPT + 4))
        steps.logits(mx.array([n]), [0])
    assert len(steps._graphs) == KEPT


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("most_rows", [1, 2])
def test_models_pass_the_check_at_load(kind: str, most_rows: int) -> None:
    module = tiny.ALL[kind]()
    assert graphs_agree(module, states_of(module, n_slots=most_rows), most_rows)


class Spoilt(nn.Module):
    """A model around another one, to do something wrong in a step."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self._n_calls = 0
        self._kept: Any = mx.zeros(1)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self._inner(tokens, cache=cache)
        return self.change(tokens, logits)


class Reads(Spoilt):
    """It needs a number on the host."""

    def change(self, tokens: mx.array, logits: mx.array) -> mx.array:
        return logits + int(tokens[0, 0].item() > 300)


class Counts(Spoilt):
    """It counts its calls; a graph has the number that was there when it was made."""

    def change(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self._n_calls += 1
        return logits * (1 if self._n_calls < 5 else 3)


class Freezes(Spoilt):
    """It takes a number from the host at each call; a graph has the one of its first position."""

    def change(self, tokens: mx.array, logits: mx.array) -> mx.array:
        self._n_calls += 1
        return logits * (self._n_calls % 2 + 1)


class Keeps(Spoilt):
    """It keeps an array of one step for the next one."""

    def change(self, tokens: mx.array, logits: mx.array) -> mx.array:
        found = logits + 0 * self._kept
        self._kept = logits.sum()
        return found


@pytest.mark.parametrize("kind", [Reads, Counts, Freezes, Keeps])
def test_a_model_that_is_no_pure_function_is_not_compiled(kind: type[Spoilt]) -> None:
    module = tiny.llama()
    states = SlotStates(cache_maker(module), 2, KV_TYPES["f32"], KV_TYPES["f32"])
    assert not graphs_agree(kind(module), states, 2)
    assert graphs_agree(module, states_of(module), 2), "nothing of it stays behind"


TOGETHER = [(5, 17, 200, 33, 8), (90, 14, 3), tuple(range(40, 63))]


def generated(module: Any, n: int, patch: Callable[[], None] = lambda: None) -> list[list[int]]:
    """The tokens of all of ``TOGETHER`` in one batch; ``patch`` is called after the load."""
    bench = Bench(module)
    try:
        patch()
        for task_id, prompt in enumerate(TOGETHER):
            bench.submit(task_id, prompt, n_predict=n)
        return bench.finish(*range(len(TOGETHER)))
    finally:
        bench.close()


@pytest.mark.parametrize("n_rows", [1, 3])
def test_where_a_graph_cannot_be_made_steps_go_on_without(
    n_rows: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = tiny.llama()
    monkeypatch.setattr("tests.engine.test_compiled_steps.TOGETHER", TOGETHER[:n_rows])

    def fail(self: CompiledSteps, shape: BlockShape, *inputs: Any) -> Any:
        raise RuntimeError("no graph today")

    found = generated(module, 30, lambda: monkeypatch.setattr(CompiledSteps, "_step", fail))
    assert found == [oracle(module, prompt, 30) for prompt in TOGETHER]
    assert caplog.text.count("no decode step is compiled") == 1


def test_long_streams_in_a_batch_give_what_each_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    made: list[BlockShape] = []
    step = CompiledSteps._step

    def noted(self: CompiledSteps, shape: BlockShape, *inputs: Any) -> Any:
        made.append(shape)
        return step(self, shape, *inputs)

    monkeypatch.setattr(CompiledSteps, "_step", noted)
    assert generated(module, 100) == [oracle(module, prompt, 100) for prompt in TOGETHER]
    assert {shape.end for shape in made if shape.hi - shape.lo == 3} == {64, 128}
