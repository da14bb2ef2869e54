"""Who gets a slot that has become free."""

from __future__ import annotations

from mlxserver.engine.deferred import MAX_PASSED, Deferred
from mlxserver.engine.task import Finished, Started, Task
from mlxserver.sampling.params import SamplingParams
from tests.engine.test_scheduler import Harness

CHILD = ((901, SamplingParams()),)


def task(task_id: int, id_slot: int = -1, pair: bool = False) -> Task:
    return Task(task_id, (1, 2, 3), id_slot=id_slot, children=CHILD if pair else ())


def test_those_that_asked_for_the_slot_come_first_then_the_oldest() -> None:
    waiting = Deferred(lambda task: bool(task.children))
    for each in (task(0), task(1, id_slot=2), task(2), task(3, id_slot=2)):
        waiting.add(each)
    assert [each.id for each in waiting.in_turn(2)] == [1, 3, 0, 2]
    assert [each.id for each in waiting.in_turn(0)] == [0, 1, 2, 3]


def test_only_the_number_of_times_that_a_task_for_several_slots_is_passed_is_bounded() -> None:
    waiting = Deferred(lambda task: bool(task.children))
    waiting.add(task(0))
    waiting.add(task(1, pair=True))
    for task_id in range(10, 10 + MAX_PASSED):
        assert waiting.first is None
        waiting.add(task(task_id))
        waiting.leave(task_id)
    assert waiting.first is not None and waiting.first.id == 1
    waiting.leave(1)
    assert waiting.first is None


def test_a_request_for_two_slots_is_not_passed_for_ever() -> None:
    h = Harness()
    for task_id in range(4):
        h.submit(task_id, n_predict=3 + task_id)
    h.submit(900, n_predict=2, children=CHILD)
    h.scripts[901] = []
    for task_id in range(10, 200):  # as soon as one ends the next one comes
        h.submit(task_id, n_predict=3 + task_id % 2)
        while len(h.scheduler.slots) - sum(slot.is_idle for slot in h.scheduler.slots) == 2:
            h.step()
        if h.of(901, Finished):
            break
    assert h.of(900, Started) and h.of(901, Finished)
    assert task_id < 10 + 2 * MAX_PASSED
    h.run()
    assert len([event for event in h.events if isinstance(event, Finished)]) == 6 + task_id - 10 + 1


def test_a_cancelled_task_holds_nobody_up() -> None:
    h = Harness()
    h.submit(0, n_predict=100)
    h.submit(900, children=CHILD)
    for task_id in range(10, 10 + MAX_PASSED):
        h.submit(task_id, n_predict=1)
        while not h.of(task_id, Finished):
            h.step()
    h.submit(500, n_predict=1)
    h.step()
    assert not h.of(500, Started)
    h.scheduler.cancel(900)
    h.step()
    assert h.of(500, Started)
    h.run()
