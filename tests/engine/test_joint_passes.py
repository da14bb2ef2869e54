"""Prompts and rows of several slots go through one pass, which gives what each would give by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine import pace
from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.memory import StepMemory
from mlxserver.engine.plan import Chunk, Decode
from mlxserver.engine.prompts import MOST_REST
from mlxserver.engine.task import Failed, Started, Token
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.memory import MemoryBudget, MemoryCosts
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.engine.bench import Bench, oracle
from tests.models import tiny

KINDS = ("llama", "qwen3", "mixtral")
PASS = 32
"""Tokens that a pass costs."""
PROMPTS = [tuple((11 * slot + 5 * i) % tiny.VOCAB for i in range(n)) for slot, n in enumerate((20, 33, 27))]
STREAM, QUESTION = (9, 8, 7), (3, 1, 4, 1, 5)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a step has room for a whole prompt where nobody else waits."""
    monkeypatch.setattr(pace, "LONGEST_CHUNK_SECONDS", 1e3)


@contextmanager
def ragged(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, list[int]]]]:
    """(rows, tokens of each chunk) of the passes of several slots meanwhile."""
    found: list[tuple[int, list[int]]] = []
    inner = ForwardPass._ragged

    def noted(self: Any, slots: Sequence[int], tokens: Any, adapters: Any, chunks: list[Chunk]) -> Any:
        found.append((len(slots), [len(chunk.tokens) for chunk in chunks]))
        return inner(self, slots, tokens, adapters, chunks)

    with patch.context() as m:
        m.setattr(ForwardPass, "_ragged", noted)
        yield found


@contextmanager
def watched(module: Any, patch: pytest.MonkeyPatch, look: Callable[[mx.array], None]) -> Iterator[None]:
    """``look`` gets the tokens (B, L) of each forward pass before it."""
    inner = type(module).__call__

    def call(self: Any, tokens: mx.array, *args: Any, **fields: Any) -> Any:
        look(tokens)
        return inner(self, tokens, *args, **fields)

    with patch.context() as m:
        m.setattr(type(module), "__call__", call)
        yield


@contextmanager
def failing(module: Any, patch: pytest.MonkeyPatch, fails: Callable[[mx.array], bool]) -> Iterator[None]:
    """A forward pass fails where ``fails`` says so of its tokens."""

    def look(tokens: mx.array) -> None:
        if fails(tokens):
            raise RuntimeError("not today")

    with watched(module, patch, look):
        yield


def all_at_once(bench: Bench, n: int, **fields: Any) -> list[list[int]]:
    """The answers to ``PROMPTS``, of which the engine hears at once."""
    with bench.held():
        for task_id, prompt in enumerate(PROMPTS):
            bench.submit(task_id, prompt, n_predict=n, **fields)
    return bench.finish(*range(len(PROMPTS)))


@contextmanager
def warm(module: Any, **fields: Any) -> Iterator[Bench]:
    """Prompts are timed, so that a step has as many as there is time for."""
    bench = Bench(module, n_batch=256, n_ubatch=256, **fields)
    assert bench.engine._scheduler is not None
    bench.engine._scheduler.pace.pass_tokens = PASS
    try:
        bench.submit(99, (1, 2, 3) * 9, n_predict=3, cache_prompt=False)
        bench.finish(99)
        yield bench
    finally:
        bench.close()
    assert bench.errors == []


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_wait_together_and_their_last_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.ALL[kind]()
    with warm(module) as bench, ragged(monkeypatch) as passes:
        assert all_at_once(bench, 12) == [oracle(module, prompt, 12) for prompt in PROMPTS]
    assert passes == [(3, [19, 32, 26])]


def test_prompts_go_on_behind_what_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    with warm(module) as bench:
        for task_id in (0, 2):
            bench.submit(10 + task_id, PROMPTS[task_id][: 9 + task_id], n_predict=1, id_slot=1 + task_id)
        bench.finish(10, 12)
        with ragged(monkeypatch) as passes:
            found = all_at_once(bench, 12, cache_prompt=True)
        assert found == [oracle(module, each, 12) for each in PROMPTS]
        assert [bench.of(task_id, Started)[0].n_past for task_id in range(3)] == [9, 0, 11]
    assert passes == [(3, [10, 32, 15])]


TYPES = [(kind, "f32", "f32") for kind in (*KINDS, "deepseek_v3")]
TYPES += [("llama", "f16", "bf16"), ("llama", "q8_0", "q8_0")]


@pytest.mark.parametrize(("kind", "key_type", "value_type"), TYPES)
@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_prompt_s_end_and_its_last_token_are_one_pass(
    kind: str, key_type: str, value_type: str, n_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any plain model."""
    fields = {"head_dim": 32} if "q" in key_type else {}
    module = tiny.ALL[kind](**fields)
    made: list[int] = []

    def look(tokens: mx.array) -> None:
        if tokens.size > 1:
            made.append(tokens.size)

    bench = Bench(module, cache_type_k=key_type, cache_type_v=value_type, n_slots=n_slots)
    with closing(bench), watched(module, monkeypatch, look):
        for task_id, n in enumerate((2, 3, 17, MOST_REST + 1)):
            prompt = tuple((13 * task_id + 7 * i) % tiny.VOCAB for i in range(n))
            made.clear()
            bench.submit(task_id, prompt, n_predict=8)
            (found,) = bench.finish(task_id)
            assert made == [n]
            # what is there already is not read again
            again = (*prompt, 5, 6, 7)
            made.clear()
            bench.submit(100 + task_id, again, n_predict=8, cache_prompt=True)
            (more,) = bench.finish(100 + task_id)
            assert made == [len(again) - bench.of(100 + task_id, Started)[0].n_past] < [5]
            if "q" not in key_type:
                assert (found, more) == (oracle(module, prompt, 8), oracle(module, again, 8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_prompt_goes_through_the_stream_s_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.ALL[kind]()
    long = tuple((7 * i + i * i) % tiny.VOCAB for i in range(150))
    with warm(module, n_slots=3) as bench, ragged(monkeypatch) as passes:
        bench.submit(0, STREAM, n_predict=150)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 6)
        bench.submit(1, long, n_predict=9)
        bench.submit(2, QUESTION, n_predict=9)
        found = bench.finish(0, 1, 2)
        assert found == [oracle(module, STREAM, 150), oracle(module, long, 9), oracle(module, QUESTION, 9)]
    beside = [chunks for n_rows, chunks in passes if n_rows]
    assert sum(sum(chunks) for chunks in beside) >= len(long) - 1


def test_only_the_prompt_that_cannot_be_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    bad = PROMPTS[1][5]
    assert bad not in PROMPTS[0] + PROMPTS[2]

    def fails(tokens: mx.array) -> bool:
        return tokens.size > 3 and bad in sum(tokens.tolist(), [])

    with warm(module) as bench:
        with failing(module, monkeypatch, fails), ragged(monkeypatch) as passes:
            all_at_once(bench, 12)
        assert passes[0] == (3, [19, 32, 26])
        assert [bool(bench.of(task_id, Failed)) for task_id in range(3)] == [False, True, False]
        assert bench.finish(0, 2) == [oracle(module, PROMPTS[i], 12) for i in (0, 2)]
        bench.submit(5, PROMPTS[1], n_predict=12)
        assert bench.finish(5) == [oracle(module, PROMPTS[1], 12)]


def test_where_a_joint_pass_fails_nobody_loses_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    with warm(module) as bench:
        bench.submit(0, STREAM, n_predict=60)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 6)
        with failing(module, monkeypatch, lambda tokens: tokens.shape[0] > 2), ragged(monkeypatch) as passes:
            bench.submit(1, PROMPTS[1], n_predict=9)
            bench.finish(1)
        assert passes
        assert bench.finish(0, 1) == [oracle(module, STREAM, 60), oracle(module, PROMPTS[1], 9)]


def test_a_pass_of_one_task_that_fails_is_that_task_s(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    with warm(module, n_slots=1) as bench:
        with failing(module, monkeypatch, lambda tokens: True):
            bench.submit(0, QUESTION, n_predict=8)
            bench.finish(0)
        assert bench.of(0, Failed)
        bench.submit(1, QUESTION, n_predict=8)
        assert bench.finish(1) == [oracle(module, QUESTION, 8)]


@pytest.mark.parametrize(("reads_all", "fits"), [(False, True), (True, False)])
def test_logits_of_all_tokens_are_counted_where_they_are_made(reads_all: bool, fits: bool) -> None:
    module = tiny.llama()
    budget = MemoryBudget(5000, active=lambda: 0)
    states = SlotStates(cache_maker(module), 2, KV_TYPES["f32"], KV_TYPES["f32"], budget=budget)
    budget.costs = MemoryCosts(row=1000)
    memory = StepMemory(states)
    chunk = Chunk(1, 1, (5,) * 10, 10)
    assert memory.fit_together([chunk], [Decode(0, 0)], reads_all) == fits
