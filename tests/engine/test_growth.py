"""Beside streams, large buffers grow over several steps, and answers are what they would be."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.engine.plan import Grow
from mlxserver.engine.runner import Runner, Step
from mlxserver.engine.task import Failed, Token
from mlxserver.kv.memory import OutOfMemory
from mlxserver.kv.slot_states import SlotStates
from tests.engine.bench import Bench, oracle
from tests.engine.test_scheduler import AnyCut, Harness
from tests.models import tiny

SHORT, LONG = (5, 17, 200, 33, 8), tuple((7 * i) % tiny.VOCAB for i in range(300))


class FarCut(AnyCut):
    """Slots have room for so many tokens."""

    room = 64

    def is_far_from(self, slot: int, n: int) -> bool:
        return n > self.room


def test_a_prompt_waits_for_its_room_beside_a_stream() -> None:
    states = FarCut()
    h = Harness(states=states, n_slots=3, n_ctx=3000, n_ctx_slot=1000)
    h.submit(0, n_prompt=9, n_predict=20)
    assert not h.step().grows
    h.submit(1, n_prompt=100, first=500, n_predict=7)
    for _ in range(2):
        plan = h.step()
        move = plan.moves[-1]
        assert isinstance(move, Grow) and (move.task_id, move.n) == (1, 107) and move.seconds > 0
        assert plan.grows and not plan.passes and [decode.task_id for decode in plan.decodes] == [0]
    states.room = 107
    plan = h.step()
    assert not plan.grows and plan.chunks[0].task_id == 1


def test_by_itself_a_prompt_has_its_room_at_once() -> None:
    h = Harness(states=FarCut(), n_ctx=3000, n_ctx_slot=1000)
    h.submit(0, n_prompt=100)
    plan = h.step()
    assert not plan.grows and plan.chunks


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All growth is large, and one layer grows in a step; the slots of these steps."""
    grown: list[int] = []
    inner = SlotStates.grow

    def grow(self: SlotStates, slot: int, n: int, seconds: float) -> None:
        grown.append(slot)
        inner(self, slot, n, 0)

    monkeypatch.setattr("mlxserver.kv.buffer_room.MOST_AT_ONCE", 0)
    monkeypatch.setattr(SlotStates, "grow", grow)
    return grown


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_answers_are_those_of_each_alone(kind: str, slowly: list[int]) -> None:
    module = tiny.ALL[kind]()
    bench = Bench(module)
    try:
        bench.submit(0, SHORT, n_predict=150)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 3)
        bench.submit(1, LONG, n_predict=20)
        assert bench.finish(0, 1) == [oracle(module, SHORT, 150), oracle(module, LONG, 20)]
    finally:
        bench.close()
    assert len(slowly) >= (2 if kind == "llama" else 1), "one a layer of plain attention"


def test_one_that_finds_no_room_fails_alone(slowly: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    bench = Bench(module)

    def grow(self: SlotStates, slot: int, n: int, seconds: float) -> None:
        raise OutOfMemory("out of memory: no room today")

    monkeypatch.setattr(SlotStates, "grow", grow)
    try:
        bench.submit(0, SHORT, n_predict=100)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 3)
        bench.submit(1, LONG, n_predict=20)
        assert bench.finish(0, 1)[0] == oracle(module, SHORT, 100)
        assert bench.of(1, Failed)[0].message == "out of memory: no room today"
    finally:
        bench.close()


def test_steps_that_wait_for_room_are_not_timed(slowly: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tiny.llama())
    launched: list[Step] = []
    launch = Runner.launch

    def noted(self: Runner, plan: Any) -> Step:
        launched.append(launch(self, plan))
        return launched[-1]

    monkeypatch.setattr(Runner, "launch", noted)
    timed: list[int] = []
    assert bench.engine._scheduler is not None
    monkeypatch.setattr(bench.engine._scheduler.pace, "ran", lambda *args: timed.append(len(launched)))
    try:
        bench.submit(0, SHORT, n_predict=100)
        bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) > 3)
        bench.submit(1, LONG, n_predict=5)
        bench.finish(0, 1)
    finally:
        bench.close()
    growing = [number for number, step in enumerate(launched, 1) if step.plan.grows]
    assert growing and not set(growing) & set(timed)
