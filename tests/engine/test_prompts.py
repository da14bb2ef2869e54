"""Which chunks of waiting prompts a step has: first come, first served, and several in a pass."""

from __future__ import annotations

import pytest

from mlxserver.engine import pace
from mlxserver.engine.pace import OWN_PASS_SHARE, PROMPT_SHARE, Pace
from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.prompts import MOST_REST
from mlxserver.sampling.params import SamplingParams
from tests.engine.test_pace import PASS_TOKENS, learned, seconds_of
from tests.engine.test_scheduler import Harness, NoCut

SIZES = {"n_slots": 8, "n_ctx": 8 * 1024, "n_ctx_slot": 1024, "n_batch": 2048, "n_ubatch": 512}


@pytest.fixture(autouse=True)
def a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step may take while no stream runs, for round numbers."""
    monkeypatch.setattr(pace, "LONGEST_CHUNK_SECONDS", 1.0)


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
    assert planned(h) == [[(0, 40), (1, 40), (2, 40), (3, 8)], [(3, 32), (4, 40)]]


def test_in_the_streams_own_pass_there_is_room_for_more() -> None:
    """The weights are read anyway."""
    taken = []
    for shares_passes in (True, False):
        h = harness(shares_passes)
        submit(h, 20)
        h.step()
        h.submit(1, n_prompt=901, first=5000)
        taken.append(h.scheduler.plan().n_prompt)
    # a decode step takes 110 ms, a pass by itself 92, a token 3
    assert taken[0] == pytest.approx(PROMPT_SHARE * 110 / 3, rel=0.1)
    assert taken[1] == pytest.approx((OWN_PASS_SHARE * 110 - 92) / 3, rel=0.1)


def test_the_streams_pass_is_the_only_one_beside_them() -> None:
    h = harness(n_ubatch=32)
    submit(h, 20)
    h.step()
    for task_id in (1, 2, 3):
        h.submit(task_id, n_prompt=201, first=5000 * task_id)
    assert planned(h) == [[(1, 32)]]


@pytest.mark.parametrize(("n_rest", "one_pass"), [(MOST_REST, True), (MOST_REST + 1, False)])
def test_a_short_end_is_evaluated_with_its_last_token_by_any_plain_model(n_rest: int, one_pass: bool) -> None:
    h = harness(shares_passes=False)
    submit(h, n_rest)
    assert h.scheduler.plan().is_joint == one_pass
    shared = harness()
    submit(shared, n_rest)
    assert shared.scheduler.plan().is_joint


def test_without_sharing_it_is_not_where_others_take_part() -> None:
    beside, two = harness(shares_passes=False), harness(shares_passes=False)
    submit(beside, 20)
    beside.step()
    beside.submit(1, n_prompt=4, first=5000)
    submit(two, 3, 3)
    for h in (beside, two):
        plan = h.scheduler.plan()
        assert plan.passes and len(plan.decodes) == 2 and not plan.is_joint


def test_nor_where_it_has_other_adapters_than_the_token() -> None:
    h = harness(shares_passes=False)
    h.submit(0, n_prompt=10, invoked=(("digest", 1.0),), invoked_at=9)
    plan = h.scheduler.plan()
    assert plan.chunks[0].adapters != plan.joins[0].adapters and not plan.is_joint


def test_state_that_is_stored_before_the_last_token_is_not_passed_over() -> None:
    h = Harness(states=NoCut(), shares_passes=True)
    h.submit(0, n_prompt=9, n_predict=2)
    h.run()
    ends = [plan for plan in h.plans if plan.passes and plan.decodes]
    assert ends and not any(plan.is_joint for plan in ends)


def test_completions_that_copy_the_prompt_s_state_come_behind_it() -> None:
    h = harness()
    h.submit(0, n_prompt=9, children=((1, SamplingParams()),))
    plan = h.scheduler.plan()
    assert plan.shares and len(plan.decodes) == 2 and not plan.is_joint


def test_a_prompt_of_one_token_holds_nobody_up() -> None:
    h = harness()
    submit(h, 0, 30, 0, 30)
    assert planned(h) == [[(1, 30), (3, 30)]]


@pytest.mark.parametrize("shares_passes", [True, False])
def test_beside_streams_prompts_take_their_share(shares_passes: bool) -> None:
    h = harness(shares_passes)
    submit(h, 20)
    h.step()
    h.submit(1, n_prompt=901, first=5000)
    plan = h.scheduler.plan()
    assert [chunk.task_id for chunk in plan.chunks] == [1]
    assert plan.is_joint == shares_passes and [shape.is_own for shape in plan.shapes] == [not shares_passes]
    seconds = h.scheduler.pace.seconds(1, 1, not shares_passes)
    assert sum(map(seconds_of, plan.shapes)) == pytest.approx(seconds, rel=0.2)


def test_the_first_step_of_all_is_short() -> None:
    h = harness(pace=Pace(PASS_TOKENS))
    submit(h, *[30] * 8)
    assert planned(h) == [[(0, 30), (1, 30), (2, 3)]]


def test_steps_without_a_decode_step_between_them_go_on_at_a_pace() -> None:
    """A stream runs and none of its steps was timed: prompts do not drip."""
    pace = Pace()
    pace.ran(0.3, [PassShape(64, 32)], 0)
    h = harness(pace=pace)
    submit(h, 20)
    h.step()
    h.submit(1, n_prompt=400, first=5000)
    assert sum(n for chunks in planned(h) for _, n in chunks) > 30
