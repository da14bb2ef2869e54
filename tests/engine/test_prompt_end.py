"""The end of a prompt and its last token share a pass, which gives what two passes would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.plan import Chunk, Decode, Join, Plan
from mlxserver.engine.prompt_end import MOST_BESIDE, MOST_REST, joined_end
from mlxserver.engine.task import Failed, Started, Token
from tests.engine.bench import GREEDY, Bench, oracle
from tests.engine.test_scheduler import Harness, NoCut
from tests.models import tiny

LAST = Decode(0, 7)
JOIN = Join(0, 7, GREEDY, (1, 2, 3))


def chunk(n: int = 2, task_id: int = 7, **fields: Any) -> Chunk:
    return Chunk(0, task_id, (0,) * n, 2, **fields)


def test_a_short_end_is_joined() -> None:
    before = (chunk(500),)
    assert joined_end((before, (chunk(),)), [JOIN], (LAST,)) == ((before,), (Decode(0, 7, chunk()),))


def test_a_shorter_one_is_joined_beside_others() -> None:
    other, rest = Decode(1, 8), chunk(MOST_BESIDE)
    assert joined_end(((rest,),), [JOIN], (LAST, other)) == ((), (Decode(0, 7, rest), other))


@pytest.mark.parametrize(
    ("passes", "joins", "decodes"),
    [
        ((), [JOIN], (LAST,)),
        (((chunk(),),), [], (LAST,)),
        (((chunk(MOST_BESIDE + 1),),), [JOIN], (LAST, Decode(1, 8))),
        (((chunk(),),), [JOIN, Join(1, 8, GREEDY, (1, 2))], (LAST,)),
        (((chunk(), chunk()),), [JOIN], (LAST,)),
        (((chunk(task_id=9),),), [JOIN], (LAST,)),
        (((chunk(MOST_REST + 1),),), [JOIN], (LAST,)),
        (((chunk(adapters=(("digest", 1.0),)),),), [JOIN], (LAST,)),
    ],
    ids="nothing_left running others children shared another's long adapters".split(),
)
def test_others_are_not(passes: Any, joins: Any, decodes: Any) -> None:
    assert joined_end(passes, joins, decodes) == (passes, decodes)


def test_the_plan_counts_them_as_a_prompt() -> None:
    plan = Plan(decodes=(Decode(0, 7, Chunk(0, 7, (1, 2, 3), 13)),))
    assert plan.shapes == [PassShape(1, 4, 14)]
    assert (plan.n_prompt, plan.n_rows) == (3, 0)
    assert Plan(decodes=(LAST,)).shapes == [] and Plan(decodes=(LAST,)).n_rows == 1


def test_a_slot_by_itself_has_one_pass_and_one_beside_a_stream_two() -> None:
    h = Harness(n_slots=2)
    h.submit(0, n_prompt=9, n_predict=50)
    plan = h.step()
    assert not plan.passes and plan.decodes[0].rest == Chunk(1, 0, tuple(range(10, 18)), 8, (), 59)
    h.submit(1, n_prompt=MOST_BESIDE + 2, first=500)
    plan = h.step()
    assert len(plan.passes) == 1 and [decode.rest for decode in plan.decodes] == [None, None]


def test_state_that_is_stored_before_the_last_token_is_not_passed_over() -> None:
    h = Harness(states=NoCut())
    h.submit(0, n_prompt=9)
    assert len(h.step().passes) == 1


# ------------------------------------------------------------------ engine


@contextmanager
def widths(module: Any, patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of the module's forward passes meanwhile."""
    found: list[int] = []
    inner = type(module).__call__

    def call(self: Any, tokens: mx.array, *args: Any, **fields: Any) -> Any:
        found.append(tokens.shape[1])
        return inner(self, tokens, *args, **fields)

    with patch.context() as m:
        m.setattr(type(module), "__call__", call)
        yield found


TYPES = [
    ("llama", "f32", "f32"),
    ("qwen3", "f32", "f32"),
    ("deepseek_v3", "f32", "f32"),
    ("llama", "f16", "bf16"),
]


@pytest.mark.parametrize(("kind", "key_type", "value_type"), TYPES)
def test_answers_are_those_of_two_passes(
    kind: str, key_type: str, value_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tiny.ALL[kind]()
    bench = Bench(module, cache_type_k=key_type, cache_type_v=value_type)
    try:
        for task_id, n in enumerate((2, 3, 17, MOST_REST + 1)):
            prompt = tuple((13 * task_id + 7 * i) % tiny.VOCAB for i in range(n))
            with widths(module, monkeypatch) as passes:
                bench.submit(task_id, prompt, n_predict=8)
                assert bench.finish(task_id) == [oracle(module, prompt, 8)]
            assert passes[0] == n
            # what is there already is not read again
            again = (*prompt, 5, 6, 7)
            with widths(module, monkeypatch) as passes:
                bench.submit(100 + task_id, again, n_predict=8, cache_prompt=True)
                assert bench.finish(100 + task_id) == [oracle(module, again, 8)]
            assert passes[0] == len(again) - bench.of(100 + task_id, Started)[0].n_past < 5
    finally:
        bench.close()


def test_a_short_question_beside_a_stream_changes_neither() -> None:
    module = tiny.llama()
    bench = Bench(module)
    stream, question = (9, 8, 7), (3, 1, 4, 1, 5)
    try:
        bench.submit(0, stream, n_predict=60)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 3)
        for task_id in (1, 2):
            bench.submit(task_id, question, n_predict=9)
            bench.finish(task_id)
        found = bench.finish(0, 1, 2)
        assert found == [oracle(module, stream, 60)] + 2 * [oracle(module, question, 9)]
    finally:
        bench.close()


def test_a_pass_that_fails_is_its_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    bench = Bench(module)
    prompt = (3, 1, 4, 1, 5)
    inner = type(module).__call__

    def call(self: Any, tokens: mx.array, *args: Any, **fields: Any) -> Any:
        if tokens.shape[1] == len(prompt):
            raise RuntimeError("not today")
        return inner(self, tokens, *args, **fields)

    try:
        with monkeypatch.context() as m:
            m.setattr(type(module), "__call__", call)
            bench.submit(0, prompt, n_predict=8)
            bench.finish(0)
        assert bench.of(0, Failed)
        bench.submit(1, prompt, n_predict=8)
        assert bench.finish(1) == [oracle(module, prompt, 8)]
    finally:
        bench.close()
