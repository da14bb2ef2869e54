"""What a context shift takes away, and what the slot holds and tells afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.engine.context_shift import shift_of
from mlxserver.engine.plan import Discard
from mlxserver.engine.task import Failed, Finished, Started, Task
from mlxserver.kv.trie import PrefixTrie
from mlxserver.sampling.params import SamplingParams
from tests.engine.test_scheduler import EOS, Harness

N_CTX = 256


@pytest.mark.parametrize(
    ("fields", "n_tokens", "adds_bos", "expected"),
    [
        ({}, 255, False, (0, 127)),
        ({"n_keep": 20}, 255, False, (20, 117)),
        ({"n_keep": 20}, 255, True, (21, 117)),
        ({"n_keep": -1}, 255, False, (245, 5)),
        ({"n_keep": 500}, 255, False, (252, 1)),
        ({"n_keep": 30, "n_discard": 15}, 255, False, (30, 15)),
        ({"n_discard": 500}, 255, False, (0, 254)),
    ],
)
def test_as_llama_server_reckons(
    fields: dict[str, Any], n_tokens: int, adds_bos: bool, expected: tuple[int, int]
) -> None:
    task = Task(0, tuple(range(245)), **fields)
    shift = shift_of(task, n_tokens, N_CTX, adds_bos, 11)
    assert (shift.n_keep, shift.n_discard) == expected


def discards(h: Harness) -> list[Discard]:
    return [move for plan in h.plans for move in plan.moves if isinstance(move, Discard)]


def test_a_full_slot_drops_tokens_and_goes_on() -> None:
    h = Harness(context_shift=True)
    h.submit(0, n_prompt=245, first=1000, n_predict=20, n_keep=20, script=range(1, 21))
    h.run()
    assert discards(h) == [Discard(1, 0, 20, 117)]
    assert h.tokens(0) == list(range(1, 21))
    finished = h.of(0, Finished)[0]
    assert (finished.reason, finished.truncated, finished.n_tokens) == ("limit", True, 147)
    assert finished.shifted_after == 11
    slot = h.scheduler.slots[1]
    assert slot.tokens == [*range(1000, 1020), *range(1137, 1245), *range(1, 20)]
    assert slot.n_exact == 20


def test_the_last_token_that_fits_needs_no_shift() -> None:
    for n_predict, shifted in ((11, False), (12, True)):
        h = Harness(context_shift=True)
        h.submit(0, n_prompt=245, n_predict=n_predict)
        h.run()
        assert bool(discards(h)) is shifted
        assert h.of(0, Finished)[0].truncated is shifted


def test_generation_has_no_end_but_what_was_asked_for() -> None:
    h = Harness(context_shift=True)
    h.submit(0, n_prompt=250, n_predict=-1, n_discard=8, script=[*range(1, 60), EOS])
    h.run()
    finished = h.of(0, Finished)[0]
    assert (finished.reason, len(h.tokens(0))) == ("eos", 60)
    assert len(discards(h)) == (250 + 60 - 1 - 255) // 8 + 1
    assert finished.n_tokens == len(h.scheduler.slots[1].tokens) == 250 + 59 - 8 * len(discards(h))


def test_a_stop_found_late_forgets_what_moved_ahead_of_it() -> None:
    h = Harness(context_shift=True)
    h.submit(0, n_prompt=245, first=1000, n_predict=30, n_keep=20, script=range(1, 31))
    while len(h.tokens(0)) < 14:
        h.step()
    assert discards(h)
    h.scheduler.stop(0, 8)
    h.events += h.scheduler.take_events()
    finished = h.of(0, Finished)[0]
    assert (finished.truncated, finished.n_tokens) == (False, 245 + 7)
    assert h.scheduler.slots[1].tokens == list(range(1000, 1020))


def test_what_moved_is_not_reused_as_exact_state() -> None:
    h = Harness(context_shift=True, trie=PrefixTrie(None))
    h.submit(0, n_prompt=245, first=1000, n_predict=16, n_keep=30)
    h.run()
    held = tuple(h.scheduler.slots[1].tokens)
    h.submit(1, tokens=(*held[:100], 7), n_predict=1)
    h.run()
    assert h.of(1, Started)[0].n_past == 30
    h.submit(2, n_prompt=245, first=1000, n_predict=1)
    h.run()
    assert h.of(2, Started)[0].n_past == 30


def test_completions_that_share_a_prompt_cannot_shift() -> None:
    h = Harness(context_shift=True)
    h.submit(0, n_prompt=245, n_predict=20, children=((1, SamplingParams()),))
    h.scripts[1] = []
    h.run()
    for task_id in (0, 1):
        failed = h.of(task_id, Failed)[0]
        assert (failed.type, failed.message) == (
            "server_error",
            "context shift cannot be used for shared prompt",
        )
    h.submit(2, n_prompt=245, n_predict=1)
    h.run()
    assert h.of(2, Started)[0].n_past == 244, "the state was good"


def test_without_it_a_full_slot_ends() -> None:
    h = Harness()
    h.submit(0, n_prompt=245, n_predict=20)
    h.run()
    assert (len(h.tokens(0)), h.of(0, Finished)[0].truncated, discards(h)) == (11, True, [])
