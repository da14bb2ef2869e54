"""Errors: the task they belong to fails, or all that run; nothing hangs, and no broken state is trusted."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.engine.mailbox import SlotAction, SlotOutcome
from mlxserver.engine.mover import Mover
from mlxserver.engine.plan import Copy, Load, Move, Save
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Failed, Token
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from mlxserver.sampling.params import SamplingParams
from tests.engine.bench import GREEDY, PROMPTS, Bench, oracle
from tests.models import tiny


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(tiny.llama)
    yield bench
    bench.close()


def fail_once(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[..., bool] = lambda *_: True
) -> list[bool]:
    """The next call of a method for which ``when`` holds raises. The list tells whether it did."""
    original, done = getattr(owner, name), []

    def method(self: Any, *args: Any) -> Any:
        if not done and when(*args):
            done.append(True)
            raise RuntimeError("a fault")
        return original(self, *args)

    monkeypatch.setattr(owner, name, method)
    return done


def runs(bench: Bench, task_id: int) -> Callable[[], bool]:
    return lambda: any(isinstance(e, Token) and e.task_id == task_id for e in bench.events)


def failures(bench: Bench, *task_ids: int) -> list[tuple[str, str]]:
    return [(e.type, e.message) for task_id in task_ids for e in bench.of(task_id, Failed)]


@pytest.mark.parametrize("where", ["plan", "commit", "take_events"])
def test_an_error_outside_every_task_fails_what_runs_and_keeps_what_waits(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tiny.llama, n_slots=2)
    children = ((1, GREEDY),)
    bench.submit(0, PROMPTS[0], n_predict=400, children=children)
    bench.submit(2, PROMPTS[2], n_predict=9)
    bench.wait(runs(bench, 0))
    fail_once(monkeypatch, Scheduler, where)
    bench.finish(0, 1, 2)
    assert [kind for kind, _ in failures(bench, 0, 1)] == ["server_error"] * 2
    assert [e.token for e in bench.of(2, Token)] == oracle(tiny.llama(), PROMPTS[2], 9)
    bench.submit(3, PROMPTS[0], n_predict=9)
    assert bench.finish(3)[0] == oracle(tiny.llama(), PROMPTS[0], 9)
    assert "a fault" in caplog.text
    assert bench.engine.snapshot().counters.prompt_tokens > 23 + 5, "counters start again"
    bench.close()


def test_books_that_do_not_add_up_are_made_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.submit(0, PROMPTS[0], n_predict=3)
    bench.finish(0)
    done = fail_once(monkeypatch, Scheduler, "check")
    bench.submit(1, PROMPTS[1], n_predict=5)
    bench.finish(1)
    bench.submit(2, PROMPTS[0], n_predict=5)
    assert bench.finish(2)[0] == oracle(tiny.llama(), PROMPTS[0], 5)
    assert done


def test_a_task_that_the_scheduler_chokes_on_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, Scheduler, "submit")
    bench.submit(0, PROMPTS[0], children=((1, GREEDY),))
    bench.finish(0, 1)
    assert [kind for kind, _ in failures(bench, 0, 1)] == ["server_error"] * 2
    bench.submit(2, PROMPTS[1], n_predict=5)
    assert bench.finish(2)[0] == oracle(tiny.llama(), PROMPTS[1], 5)


def test_requests_that_break_it_one_after_the_other_do_not_end_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task_id in range(10):
        fail_once(monkeypatch, Scheduler, "plan" if task_id % 2 else "submit")
        bench.submit(task_id, PROMPTS[0])
        bench.finish(task_id)
    assert len(failures(bench, *range(10))) == 10
    bench.submit(20, PROMPTS[0], n_predict=5)
    assert bench.finish(20)[0] == oracle(tiny.llama(), PROMPTS[0], 5)
    assert bench.errors == []


def test_an_engine_that_cannot_go_on_says_so_and_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: Scheduler) -> None:
        raise AssertionError("always")

    monkeypatch.setattr(Scheduler, "check", check)
    bench.submit(0, PROMPTS[0], n_predict=2)
    bench.wait(lambda: bench.errors)
    bench.engine.close(10)
    assert not bench.engine.is_alive
    assert str(bench.errors[0]) == "always"


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("move", [Save, Load, Copy])
def test_state_that_cannot_be_moved_fails_its_task_alone(
    kind: str, move: type[Move], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = getattr(tiny, kind)
    bench = Bench(make, n_slots=3, ctx_checkpoints=8)
    prompt, other = PROMPTS[2], PROMPTS[3]
    bench.submit(0, prompt, n_predict=300, id_slot=0)
    bench.submit(1, other, n_predict=4, id_slot=1)
    bench.finish(1)
    bench.submit(2, PROMPTS[0], n_predict=4, id_slot=1)
    bench.finish(2)
    done = fail_once(monkeypatch, Mover, "carry_out", lambda each: isinstance(each, move))
    if move is Copy:
        bench.submit(3, other, n_predict=4, id_slot=1, children=((4, GREEDY),))
        bench.finish(3, 4)
        assert [kind for kind, _ in failures(bench, 3, 4)] == ["server_error"]
    else:
        bench.submit(3, other, n_predict=4, id_slot=1)
        bench.finish(3)
        assert failures(bench, 3) == [("server_error", "Compute error.")]
    assert done and failures(bench, 0) == []
    for task_id, each in enumerate((other, PROMPTS[0], prompt, other), 10):
        bench.submit(task_id, each, n_predict=4, id_slot=1 + task_id % 2)
        assert bench.finish(task_id)[0] == oracle(make(), each, 4)
    assert bench.finish(0)[0] == oracle(make(), prompt, 300)
    bench.close()
    assert bench.errors == []


def test_children_of_a_prompt_that_broke_do_not_go_on_without_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch, SlotStates, "prompt_chunk", lambda slot, n: n == len(PROMPTS[2]) - 1)
    bench.submit(0, PROMPTS[2], n_predict=5, children=((1, GREEDY), (2, SamplingParams(seed=1))))
    bench.finish(0, 1, 2)
    assert len(failures(bench, 0, 1, 2)) == 3
    assert bench.of(1, Token) == []


def test_rows_that_break_while_they_change_places_are_not_trusted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(0, PROMPTS[0], n_predict=400)
    bench.wait(runs(bench, 0))
    done = fail_once(monkeypatch, SlotStates, "arrange_passes", lambda passes: sum(map(len, passes)) == 2)
    bench.submit(1, PROMPTS[1], n_predict=400)
    bench.finish(0, 1)
    assert done and len(failures(bench, 0, 1)) == 2
    bench.submit(2, PROMPTS[0], n_predict=6)
    assert bench.finish(2)[0] == oracle(tiny.llama(), PROMPTS[0], 6)


def test_a_slot_that_breaks_while_it_is_restored_is_empty(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def act(kind: Any) -> SlotOutcome:
        replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
        bench.engine.post(SlotAction(kind, 0, tmp_path / "state", replies.put))
        return replies.get(timeout=60)

    bench.submit(0, PROMPTS[2], n_predict=4, id_slot=0)
    bench.finish(0)
    assert act("save").error == ""
    fail_once(monkeypatch, SlotStates, "write_span")
    assert act("restore").error != ""
    assert bench.engine.snapshot().slots[0].n_prompt_tokens == 0
    bench.submit(1, PROMPTS[2], n_predict=4, id_slot=0, cache_prompt=True)
    assert bench.finish(1)[0] == oracle(tiny.llama(), PROMPTS[2], 4)


def test_a_waiting_slot_action_outlives_a_reset(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
    bench.submit(0, PROMPTS[0], n_predict=400, id_slot=0)
    bench.wait(runs(bench, 0))
    bench.engine.post(SlotAction("erase", 0, None, replies.put))
    fail_once(monkeypatch, Scheduler, "plan")
    assert replies.get(timeout=60).error == ""
    bench.finish(0)


def poisoned(module: Any, poison: int) -> Any:
    """A model that fails, when it has gone through all its layers, where a row's token is ``poison``."""

    class Poisoned:
        layers, parameters, named_modules = module.layers, module.parameters, module.named_modules

        def make_cache(self) -> list[Any]:
            return cache_maker(module)()

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            logits: mx.array = module(tokens, cache=cache)
            if tokens.shape[1] == 1 and poison in np.array(tokens):
                raise RuntimeError("a poisoned row")
            return logits

    return Poisoned()


@pytest.mark.parametrize("kind", ["llama", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"])
def test_a_row_that_fails_leaves_the_other_rows_right(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Their state is put back before each row is tried by itself, and their later tokens are right too."""
    make = getattr(tiny, kind)
    wanted = [oracle(make(), prompt, 150) for prompt in PROMPTS[:3]]
    poison = next(token for token in range(250, 0, -1) if all(token not in each for each in wanted))
    bench = Bench(lambda: poisoned(make(), poison))
    for task_id in range(3):
        bench.submit(task_id, PROMPTS[task_id], n_predict=150)
    bench.wait(lambda: all(runs(bench, task_id)() for task_id in range(3)))
    bench.submit(3, (*range(1, 21), poison), n_predict=40)  # too long to be read with its last token
    tokens = bench.finish(0, 1, 2, 3)
    assert failures(bench, 3) == [("server_error", "Compute error.")]
    assert tokens[:3] == wanted
    assert "a step of 4 rows failed" in caplog.text
    bench.submit(4, PROMPTS[3], n_predict=9)
    assert bench.finish(4)[0] == oracle(make(), PROMPTS[3], 9)
    bench.close()
    assert bench.errors == []


def test_where_state_cannot_be_put_back_all_rows_of_the_step_fail() -> None:
    """A window has lost its oldest column by then."""
    wanted = [oracle(tiny.gemma3(), prompt, 40) for prompt in PROMPTS[:2]]
    poison = next(token for token in range(250, 0, -1) if all(token not in each for each in wanted))
    bench = Bench(lambda: poisoned(tiny.gemma3(), poison))
    for task_id in range(2):
        bench.submit(task_id, PROMPTS[task_id], n_predict=400)
    bench.wait(lambda: all(runs(bench, task_id)() for task_id in range(2)))
    bench.submit(2, (9, 8, 7, poison), n_predict=40)
    bench.finish(0, 1, 2)
    assert failures(bench, 0, 1, 2) == [("server_error", "Compute error.")] * 3
    bench.submit(3, PROMPTS[0], n_predict=9)
    assert bench.finish(3)[0] == wanted[0][:9]
    bench.close()
    assert bench.errors == []


def test_a_row_whose_adapter_is_unknown_fails_alone(bench: Bench) -> None:
    bench.submit(0, PROMPTS[0], n_predict=60)
    bench.wait(runs(bench, 0))
    bench.submit(1, (7,), n_predict=9, identity=CacheIdentity(adapters=(("gone", 1.0),)))
    assert bench.finish(0, 1)[0] == oracle(tiny.llama(), PROMPTS[0], 60)
    assert failures(bench, 1) == [("server_error", "Compute error.")]
