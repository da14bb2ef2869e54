"""Which chunks of waiting prompts a step has: first come, first served, and several in a pass."""

from __future__ import annotations

import pytest

from mlxserver.engine.pace import Pace
from mlxserver.engine.pass_shape import PassShape
from tests.engine.test_pace import PASS_TOKENS, learned, seconds_of
from tests.engine.test_scheduler import Harness

SIZES = {"n_slots": 8, "n_ctx": 8 * 1024, "n_ctx_slot": 1024, "n_batch": 2048, "n_ubatch": 512}


def harness(shares_passes: bool = True, pace: Pace | None = None, **changes: int) -> Harness:
    h = Harness(shares_passes=shares_passes, **{**SIZES, **changes})
    known = pace or learned()
    h.scheduler.pace.__dict__.update(known.__dict__)
    return h


def submit(h: Harness, *sizes: int) -> None:
    """Prompts with nothing in common; so many tokens of each are read in chunks."""
    for task_id, n in enumerate(sizes):
        h.submit(task_id, n_prompt=n + 1, first=1000 * (task_id + 1), n_predict=400)


def planned(h: Harness) -> list[list[tuple[int, int]]]:
    """(task, tokens) of the chunks of each pass of the next step."""
    return [[(chunk.task_id, len(chunk.tokens)) for chunk in chunks] for chunks in h.scheduler.plan().passes]


def test_prompts_that_wait_together_share_a_pass() -> None:
    h = harness()
    submit(h, 30, 28, 33, 30, 29, 31, 30, 30)
    assert planned(h) == [list(enumerate([30, 28, 33, 30, 29, 31, 30, 30]))]


def test_where_passes_are_not_shared_each_pays_for_its_own() -> None:
    shared, apart = harness(), harness(shares_passes=False)
    for h in (shared, apart):
        submit(h, *[40] * 8)
    apart_passes = planned(apart)
    assert all(len(chunks) == 1 for chunks in apart_passes)
    n_apart = sum(n for chunks in apart_passes for _, n in chunks)
    assert n_apart < sum(n for chunks in planned(shared) for _, n in chunks)


@pytest.mark.parametrize("sizes", [(66,) * 8, (40, 90, 35, 200, 10, 64, 64, 12), (300, 20, 20)])
@pytest.mark.parametrize("shares_passes", [True, False])
def test_a_step_takes_its_time_and_no_more(sizes: tuple[int, ...], shares_passes: bool) -> None:
    h = harness(shares_passes)
    submit(h, *sizes)
    seconds, left = h.scheduler.pace.seconds(0), sum(sizes)
    plan = h.scheduler.plan()
    taken = sum(map(seconds_of, plan.shapes))
    assert taken <= 1.15 * seconds
    assert plan.n_prompt == left or taken >= 0.5 * seconds


def test_the_prompt_that_began_first_goes_first() -> None:
    h = harness()
    submit(h, 900, 20, 20)
    first, done = [], {0: 0, 1: 0, 2: 0}
    while sum(done.values()) < 940:
        passes = planned(h)
        first.append(passes[0][0][0])
        for chunks in passes:
            for task_id, n in chunks:
                assert task_id == 0 or done[0] == 900, "nobody is served before an older prompt is through"
                done[task_id] += n
    assert first == sorted(first)


def test_a_pass_has_no_more_tokens_than_the_physical_batch() -> None:
    h = harness(n_ubatch=128)
    submit(h, *[40] * 5)
    assert planned(h) == [[(0, 40), (1, 40), (2, 40)], [(3, 40), (4, 40)]]


def test_a_prompt_of_one_token_holds_nobody_up() -> None:
    h = harness()
    submit(h, 0, 30, 0, 30)
    assert planned(h) == [[(1, 30), (3, 30)]]


def test_beside_streams_prompts_take_their_share() -> None:
    h = harness()
    submit(h, 20)
    h.step()
    h.submit(1, n_prompt=901, first=5000)
    plan = h.scheduler.plan()
    assert [chunk.task_id for chunk in plan.chunks] == [1]
    assert sum(map(seconds_of, plan.shapes)) == pytest.approx(h.scheduler.pace.seconds(1), rel=0.2)


def test_the_first_step_of_all_is_short() -> None:
    h = harness(pace=Pace(PASS_TOKENS))
    submit(h, *[30] * 8)
    assert planned(h) == [[(0, 30), (1, 30)]]


def test_steps_without_a_decode_step_between_them_go_on_at_a_pace() -> None:
    """A stream runs and none of its steps was timed: prompts do not drip."""
    pace = Pace()
    pace.ran(0.3, [PassShape(1, 64, 64)], 0)
    h = harness(pace=pace)
    submit(h, 20)
    h.step()
    h.submit(1, n_prompt=400, first=5000)
    assert sum(n for chunks in planned(h) for _, n in chunks) > 30
