"""--max-loras: who runs together, who waits, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.engine.deferred import MAX_PASSED
from mlxserver.engine.task import Failed, Finished, Started
from mlxserver.kv.identity import CacheIdentity
from mlxserver.sampling.params import SamplingParams
from tests.engine.test_scheduler import Harness


def using(*names: str, scale: float = 1.0) -> CacheIdentity:
    return CacheIdentity(adapters=tuple((name, scale) for name in sorted(names)))


def harness(most: int, n_slots: int = 4) -> Harness:
    return Harness(max_loras=most, n_slots=n_slots)


def submit(h: Harness, task_id: int, *names: str, n_predict: int = 3, **fields: Any) -> None:
    h.submit(task_id, n_predict=n_predict, identity=using(*names), **fields)


def started(h: Harness) -> list[int]:
    return [event.task_id for event in h.events if isinstance(event, Started)]


def running_adapters(h: Harness) -> set[str]:
    return h.scheduler._placement._adapters.active()


def test_a_request_with_one_adapter_too_many_waits_and_those_behind_it_do_not() -> None:
    h = harness(1)
    submit(h, 0, "a", n_predict=20)
    submit(h, 1, "b")
    submit(h, 2, "a")
    submit(h, 3)
    h.step()
    assert started(h) == [0, 2, 3], "b waits; the active adapter and the base model do not"
    h.run()
    assert set(started(h)) == {0, 1, 2, 3}
    assert started(h)[-1] == 1


def test_scales_of_one_adapter_are_one_adapter() -> None:
    h = harness(1)
    h.submit(0, n_predict=20, identity=using("a", scale=1.0))
    h.submit(1, n_predict=3, identity=using("a", scale=0.5))
    h.step()
    assert started(h) == [0, 1]


def test_base_rows_are_never_counted() -> None:
    h = harness(1)
    for task_id in range(3):
        submit(h, task_id, n_predict=20)
    submit(h, 3, "a")
    h.step()
    assert started(h) == [0, 1, 2, 3]


def test_zero_is_no_bound() -> None:
    h = harness(0)
    for task_id, name in enumerate("abcd"):
        submit(h, task_id, name, n_predict=20)
    h.step()
    assert started(h) == [0, 1, 2, 3]


def test_two_adapters_of_one_request_count_as_two() -> None:
    h = harness(2)
    submit(h, 0, "a", n_predict=20)
    submit(h, 1, "b", "c")
    submit(h, 2, "a", "b")
    h.step()
    assert started(h) == [0, 2]
    h.run()
    assert started(h) == [0, 2, 1]


def test_more_adapters_than_may_ever_be_at_work_are_refused() -> None:
    h = harness(1)
    submit(h, 0, "a", "b", children=((7, SamplingParams()),))
    h.step()
    (failed,) = h.of(0, Failed)
    assert failed.type == "invalid_request_error"
    assert failed.message == "the request uses 2 LoRA adapters, but --max-loras is 1"
    assert h.of(7, Failed)
    assert all(slot.is_idle for slot in h.scheduler.slots)


def test_an_invoked_adapter_counts() -> None:
    h = harness(1)
    submit(h, 0, "a", n_predict=20)
    h.submit(1, n_predict=3, invoked=(("b", 1.0),), invoked_at=2)
    h.step()
    assert started(h) == [0]


@pytest.mark.parametrize("n_slots", [1, 2, 4])
@pytest.mark.parametrize("behind", [("a",), ("a", ""), ("a", "c")])
def test_nobody_starves_under_a_stream_of_a_popular_adapter(behind: tuple[str, ...], n_slots: int) -> None:
    """As soon as one ends another one comes, always with the adapter that is at work."""
    h = harness(1, n_slots)
    for task_id in range(n_slots):
        submit(h, task_id, "a", n_predict=3 + task_id)
    submit(h, 900, "b")
    for task_id in range(1000, 1400):
        name = behind[task_id % len(behind)]
        submit(h, task_id, *([name] if name else []), n_predict=2 + task_id % 3)
        n_finished = sum(isinstance(event, Finished) for event in h.events)
        while sum(isinstance(event, Finished) for event in h.events) == n_finished:
            h.step()
            assert len(running_adapters(h)) <= 1
        if 900 in started(h):
            break
    n_before = sum(isinstance(event, Finished) for event in h.events)
    assert n_before <= MAX_PASSED + 2 * n_slots + 1
    h.run(4000)
    assert (
        len({event.task_id for event in h.events if isinstance(event, Finished)})
        == task_id - 999 + n_slots + 1
    )


def test_base_requests_go_on_while_a_starved_adapter_waits_for_its_turn() -> None:
    h = harness(1, n_slots=3)
    submit(h, 0, "a", n_predict=400)
    submit(h, 900, "b")
    for task_id in range(1, MAX_PASSED + 1):
        submit(h, task_id, "a", n_predict=1)
        while not h.of(task_id, Finished):
            h.step()
    submit(h, 500, "a", n_predict=1)
    submit(h, 501, n_predict=1)
    while not h.of(501, Finished):
        h.step()
    assert not h.of(500, Started) and not h.of(900, Started)
    h.scheduler.cancel(0)
    h.run()
    assert started(h)[-2:] == [900, 500]


def test_a_cancelled_task_leaves_its_place() -> None:
    h = harness(1)
    submit(h, 0, "a", n_predict=50)
    submit(h, 1, "b")
    h.step()
    h.scheduler.cancel(0)
    h.step()
    assert started(h) == [0, 1]


def test_adapters_of_those_that_wait_are_in_use() -> None:
    h = harness(1)
    submit(h, 0, "a", n_predict=9)
    submit(h, 1, "b")
    h.step()
    assert h.scheduler.adapters_in_use() == {"a", "b"}
    h.run()
    assert h.scheduler.adapters_in_use() == set()
