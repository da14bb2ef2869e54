"""The scheduler against a runner that only counts: no model, no arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlxserver.engine.config import EngineConfig, context_sizes
from mlxserver.engine.plan import Plan, Result, SampledToken, Save
from mlxserver.engine.restore import Tier
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Event, Failed, Finished, PromptProgress, Started, Task, Token
from mlxserver.kv.trie import PrefixTrie
from mlxserver.sampling.params import SamplingParams

EOS = 99
CONFIG = EngineConfig(
    n_slots=2,
    n_ctx=512,
    n_ctx_slot=256,
    kv_unified=False,
    n_batch=64,
    n_ubatch=32,
    cont_batching=True,
    slot_prompt_similarity=0.1,
    cache_type_k="f32",
    cache_type_v="f32",
)


class AnyCut:
    is_plain = True
    cannot_shift = ""

    def can_truncate(self, slot: int, n: int) -> bool:
        return True

    def could_hold(self, wanted: dict[int, int]) -> bool:
        return True

    def is_far_from(self, slot: int, n: int) -> bool:
        return False


class NoCut:
    is_plain = False
    cannot_shift = "ArraysCache cannot shift"

    def can_truncate(self, slot: int, n: int) -> bool:
        return n == 0

    def could_hold(self, wanted: dict[int, int]) -> bool:
        return True

    def is_far_from(self, slot: int, n: int) -> bool:
        return False


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Harness:
    """Drives a scheduler one step ahead of its results, as the engine does."""

    def __init__(
        self,
        states: Any = None,
        trie: PrefixTrie | None = None,
        clock: Any = None,
        tier: Tier | None = None,
        shares_passes: bool = False,
        **changes: Any,
    ) -> None:
        self.config = replace(CONFIG, **changes)
        self.states, self.clock = states or AnyCut(), clock or Clock()
        self.scheduler = Scheduler(
            self.config,
            self.states,
            frozenset({EOS}),
            self.clock,
            trie,
            tier=tier,
            shares_passes=shares_passes,
        )
        self.pending: Plan | None = None
        self.plans: list[Plan] = []
        self.events: list[Event] = []
        self.scripts: dict[int, list[int]] = {}

    def submit(
        self, task_id: int, n_prompt: int = 5, first: int = 10, script: Any = (), **fields: Any
    ) -> None:
        tokens = fields.pop("tokens", tuple(range(first, first + n_prompt)))
        self.scripts[task_id] = list(script)
        self.scheduler.submit(Task(task_id, tokens, **fields))

    def step(self) -> Plan:
        plan = self.scheduler.plan()
        if self.pending is not None:
            self.commit(self.pending)
        self.pending = plan if plan.has_work else None
        self.plans.append(plan)
        self.events += self.scheduler.take_events()
        return plan

    def commit(self, plan: Plan) -> None:
        tokens = []
        for decode in plan.decodes:
            script = self.scripts[decode.task_id]
            tokens.append(SampledToken(decode.slot, decode.task_id, script.pop(0) if script else 1, None))
        self.scheduler.commit(plan, Result(tuple(tokens)))

    def run(self, steps: int = 400) -> None:
        for _ in range(steps):
            self.step()
            if self.pending is None and all(slot.is_idle for slot in self.scheduler.slots):
                return
        raise AssertionError("never came to rest")

    def of(self, task_id: int, kind: type) -> list[Any]:
        return [event for event in self.events if event.task_id == task_id and isinstance(event, kind)]

    def tokens(self, task_id: int) -> list[int]:
        return [event.token for event in self.of(task_id, Token)]


def test_limit_ends_a_task_with_exactly_that_many_tokens() -> None:
    h = Harness()
    h.submit(0, n_predict=3, script=[4, 5, 6, 7])
    h.run()
    assert h.tokens(0) == [4, 5, 6]
    assert h.of(0, Finished)[0].reason == "limit"
    assert h.of(0, Finished)[0].n_tokens == 5 + 3 - 1
    assert h.scheduler.slots[1].tokens == [10, 11, 12, 13, 14, 4, 5]


def test_n_predict_zero_samples_one() -> None:
    h = Harness()
    h.submit(0, n_predict=0)
    h.run()
    assert len(h.tokens(0)) == 1


def test_an_idle_slot_tells_the_texts_of_its_last_task_where_asked_to() -> None:
    h = Harness()
    h.submit(0, n_predict=9, script=[4, 5, 6, 7])
    while len(h.tokens(0)) < 3:
        h.step()
    h.scheduler.stop(0, 2)
    view = h.scheduler.snapshot(with_tokens=True).slots[1]
    assert (view.is_processing, view.prompt, view.generated) == (False, (10, 11, 12, 13, 14), (4, 5))
    assert h.scheduler.snapshot(with_tokens=False).slots[1].prompt == ()


def test_end_of_generation_drops_the_step_that_ran_ahead() -> None:
    h = Harness()
    h.submit(0, script=[4, EOS, 50, 51])
    h.run()
    assert h.tokens(0) == [4, EOS]
    assert h.of(0, Finished)[0].reason == "eos"
    assert h.scheduler.slots[1].tokens == [10, 11, 12, 13, 14, 4]


def test_context_end_truncates() -> None:
    h = Harness()
    h.submit(0, n_prompt=250)
    h.run()
    assert len(h.tokens(0)) == 256 - 250
    finished = h.of(0, Finished)[0]
    assert (finished.reason, finished.truncated) == ("limit", True)


def test_prompt_that_does_not_fit_fails_with_its_sizes() -> None:
    h = Harness()
    h.submit(0, n_prompt=256)
    h.run()
    failed = h.of(0, Failed)[0]
    assert failed.type == "exceed_context_size_error"
    assert failed.message == (
        "request (256 tokens) exceeds the available context size (256 tokens), try increasing it"
    )
    assert failed.fields == {"n_prompt_tokens": 256, "n_ctx": 256}


def test_empty_prompt_finishes_at_once() -> None:
    h = Harness()
    h.submit(0, tokens=())
    h.run()
    assert [type(e) for e in h.events] == [Started, Finished]
    assert h.of(0, Finished)[0].reason == "none"


def test_stop_counts_back_to_the_token_where_the_text_ended() -> None:
    h = Harness()
    h.submit(0, script=[4, 5, 6, 7, 8])
    for _ in range(5):
        h.step()
    h.scheduler.stop(0, 2)
    h.run()
    finished = h.of(0, Finished)[0]
    assert (finished.reason, finished.n_tokens) == ("stop", 6)
    assert h.scheduler.slots[1].tokens == [10, 11, 12, 13, 14, 4]
    assert h.scheduler.counters.predicted_tokens == 2


def test_state_that_cannot_be_cut_keeps_every_token_fed_to_it() -> None:
    h = Harness(states=NoCut())
    h.submit(0, script=[4, EOS, 50])
    h.run()
    assert h.scheduler.slots[1].tokens == [10, 11, 12, 13, 14, 4, EOS]


def test_fresh_slots_are_taken_last_first_and_ties_follow_use() -> None:
    h = Harness(n_slots=3)
    for task_id in range(3):
        h.submit(task_id, first=20 * task_id + 1, n_predict=2)
    h.step()
    assert [h.of(t, Started)[0].slot_id for t in range(3)] == [2, 1, 0]


def test_prefix_of_the_slot_is_reused_and_one_token_evaluated() -> None:
    h = Harness()
    h.submit(0, n_predict=2)
    h.run()
    h.submit(1, n_predict=2)
    h.run()
    assert h.of(1, Started)[0].n_past == 4
    assert h.plans[-3].passes == ()


def test_cache_prompt_false_evaluates_everything() -> None:
    h = Harness()
    h.submit(0, n_predict=2)
    h.run()
    h.submit(1, n_predict=2, cache_prompt=False)
    h.run()
    assert h.of(1, Started)[0].n_past == 0


@pytest.mark.parametrize(("shared", "reused"), [(2, False), (3, True)])
def test_similarity_must_be_above_its_threshold(shared: int, reused: bool) -> None:
    h = Harness(n_slots=2, slot_prompt_similarity=0.2)
    h.submit(0, n_predict=1, n_prompt=5)
    h.run()
    prompt = tuple(range(10, 10 + shared)) + tuple(range(60, 70 - shared))
    h.submit(1, n_predict=1, tokens=prompt)
    h.run()
    assert (h.of(1, Started)[0].n_past > 0) is reused


def test_busy_slots_defer_and_release_in_order() -> None:
    h = Harness()
    for task_id in range(5):
        h.submit(task_id, n_predict=3, first=10 + 7 * task_id)
    assert h.scheduler.snapshot(False).deferred == 3
    h.run()
    starts = [e.task_id for e in h.events if isinstance(e, Started)]
    assert starts == [1, 0, 2, 3, 4] or starts == [0, 1, 2, 3, 4]
    assert h.scheduler.snapshot(False).deferred == 0


def test_requested_slot_wraps_and_waits_while_busy() -> None:
    h = Harness()
    h.submit(0, n_predict=8, id_slot=0)
    h.submit(1, n_predict=2, id_slot=2)
    h.submit(2, n_predict=2)
    h.run()
    assert h.of(1, Started)[0].slot_id == 0
    assert h.of(2, Started)[0].slot_id == 1
    order = [e.task_id for e in h.events if isinstance(e, Finished)]
    assert order == [2, 0, 1]


def test_a_waiting_task_never_blocks_one_that_fits() -> None:
    h = Harness()
    h.submit(0, n_predict=20, id_slot=1)
    h.submit(1, n_predict=4, id_slot=0)
    h.submit(2, n_predict=2, id_slot=1)
    h.submit(3, n_predict=2, id_slot=0)
    h.run()
    order = [e.task_id for e in h.events if isinstance(e, Finished)]
    assert order == [1, 3, 0, 2]


def test_cancel_in_every_phase_frees_the_slot_at_once() -> None:
    h = Harness(n_slots=1, n_batch=16, n_ubatch=16)
    h.submit(0, n_prompt=200, n_predict=5)
    h.submit(1, n_predict=5)
    h.submit(2, n_predict=2)
    h.step()
    h.scheduler.cancel(1)  # queued
    h.scheduler.cancel(0)  # in its prompt
    assert h.scheduler.slots[0].task_id == 2
    h.step()
    h.step()
    h.scheduler.cancel(2)  # decoding
    assert h.scheduler.slots[0].is_idle
    h.run()
    assert h.of(1, Started) == [] and h.of(2, Finished) == []


def test_cancelled_prompt_leaves_what_it_evaluated() -> None:
    h = Harness(n_slots=1, n_batch=16, n_ubatch=16)
    h.submit(0, n_prompt=200)
    h.step()
    h.step()
    h.scheduler.cancel(0)
    assert h.scheduler.slots[0].tokens == list(range(10, 42))
    h.submit(1, n_prompt=200, n_predict=1)
    h.run()
    assert h.of(1, Started)[0].n_past == 32


def test_children_share_one_prompt_evaluation() -> None:
    h = Harness(n_slots=3)
    children = ((11, SamplingParams(seed=2)), (12, SamplingParams(seed=3)))
    h.scripts.update({11: [5, 5], 12: [6, 6]})
    h.submit(10, n_predict=2, script=[4, 4], children=children)
    h.run()
    assert sum(len(plan.chunks) for plan in h.plans) == 1
    assert sum(len(chunk.tokens) for plan in h.plans for chunk in plan.chunks) == 4
    assert [h.tokens(t) for t in (10, 11, 12)] == [[4, 4], [5, 5], [6, 6]]
    assert {h.of(t, Started)[0].slot_id for t in (10, 11, 12)} == {0, 1, 2}
    assert len({join.sampling.seed for plan in h.plans for join in plan.joins}) == 3


def test_children_wait_until_all_find_a_slot() -> None:
    h = Harness()
    h.submit(0, n_predict=3)
    h.scripts[11] = []
    h.submit(10, n_predict=2, children=((11, SamplingParams()),))
    assert h.scheduler.snapshot(False).deferred == 1
    h.run()
    assert len(h.tokens(11)) == 2


def test_cancelled_parent_frees_its_children() -> None:
    h = Harness(n_batch=8, n_ubatch=8)
    h.scripts[11] = []
    h.submit(10, n_prompt=100, children=((11, SamplingParams()),))
    h.step()
    h.scheduler.cancel(10)
    assert all(slot.is_idle for slot in h.scheduler.slots)


def test_failed_parent_fails_its_children() -> None:
    h = Harness()
    h.submit(10, n_prompt=300, children=((11, SamplingParams()),))
    h.run()
    assert h.of(11, Failed)[0].message == h.of(10, Failed)[0].message


def test_without_continuous_batching_prompts_wait_for_streams() -> None:
    h = Harness(cont_batching=False)
    h.submit(0, n_predict=6)
    h.step()
    h.submit(1, n_predict=2, first=40)
    h.run()
    busy = [{d.task_id for d in plan.decodes} for plan in h.plans if plan.decodes]
    assert {0, 1} not in busy
    assert [e.task_id for e in h.events if isinstance(e, Finished)] == [0, 1]


def test_prompt_goes_on_in_chunks_beside_a_stream() -> None:
    h = Harness(n_batch=64, n_ubatch=32)
    h.submit(0, n_predict=30)
    h.step()
    h.submit(1, n_prompt=200, n_predict=2)
    h.run()
    mixed = [plan for plan in h.plans if plan.chunks and any(d.task_id == 0 for d in plan.decodes)]
    assert len(mixed) >= 3
    assert all(sum(len(c.tokens) for c in plan.chunks) <= 64 for plan in mixed)


def test_progress_tells_start_chunks_and_end() -> None:
    h = Harness(n_batch=32, n_ubatch=32)
    h.submit(0, n_prompt=100, n_predict=1, return_progress=True)
    h.run()
    assert [e.processed for e in h.of(0, PromptProgress)] == [0, 32, 64, 96, 100]
    assert {e.total for e in h.of(0, PromptProgress)} == {100}


def test_unified_cells_are_taken_from_idle_slots_first() -> None:
    h = Harness(kv_unified=True, n_ctx=256)
    h.submit(0, n_prompt=150, n_predict=1, id_slot=0)
    h.run()
    h.submit(1, n_prompt=150, n_predict=1, id_slot=1)
    h.run()
    assert h.scheduler.slots[0].tokens == []
    assert len(h.of(1, Token)) == 1


def test_idle_slots_are_stored_and_emptied_in_one_pool_of_cells() -> None:
    h = Harness(kv_unified=True, n_ctx=256, trie=PrefixTrie(None))
    h.submit(0, n_prompt=20, n_predict=1, id_slot=0)
    h.run()
    assert h.scheduler.slots[0].tokens
    h.submit(1, n_prompt=20, first=100, n_predict=1, id_slot=1)
    h.run()
    assert h.scheduler.slots[0].tokens == []
    saves = [move for plan in h.plans for move in plan.moves if isinstance(move, Save)]
    assert [(save.slot, save.tokens) for save in saves] == [(0, tuple(range(10, 30)))]


def test_a_prompt_waits_for_cells_that_running_tasks_will_free() -> None:
    h = Harness(kv_unified=True, n_ctx=256)
    h.submit(0, n_prompt=150, n_predict=5, id_slot=0)
    h.submit(1, n_prompt=150, first=500, n_predict=5, id_slot=1)
    h.run()
    assert [len(h.tokens(0)), len(h.tokens(1))] == [5, 5]
    starts = [e.task_id for e in h.events if isinstance(e, (Started, Finished))]
    assert starts == [0, 0, 1, 1]


def test_completions_of_one_prompt_share_its_cells() -> None:
    h = Harness(kv_unified=True, n_ctx=256)
    h.submit(0, n_prompt=200, n_predict=20, children=((1, SamplingParams()),))
    h.scripts[1] = []
    h.run()
    assert [len(h.tokens(task_id)) for task_id in (0, 1)] == [20, 20]
    h.submit(2, n_prompt=200, n_predict=40, children=((3, SamplingParams()),))
    h.scripts[3] = []
    h.run()
    assert len(h.of(2, Failed) + h.of(3, Failed)) == 1


def test_what_a_waiting_completion_still_holds_gives_way() -> None:
    h = Harness(kv_unified=True, n_ctx=256)
    h.submit(0, n_prompt=100, n_predict=1, id_slot=0)
    h.submit(1, n_prompt=100, first=500, n_predict=1, id_slot=1)
    h.run()
    h.submit(2, n_prompt=180, first=1000, n_predict=2, children=((3, SamplingParams()),))
    h.scripts[3] = []
    h.run()
    assert [len(h.tokens(task_id)) for task_id in (2, 3)] == [2, 2]


def test_unified_cells_exhausted_while_generating_fail_the_youngest_only() -> None:
    h = Harness(kv_unified=True, n_ctx=256)
    h.submit(0, n_prompt=120, n_predict=20, id_slot=0)
    h.step()
    h.submit(1, n_prompt=120, first=500, n_predict=-1, id_slot=1)
    h.run()
    assert h.of(1, Failed)[0].message == "Context size has been exceeded."
    assert len(h.tokens(0)) == 20


def test_failed_tasks_forget_their_state() -> None:
    h = Harness()
    h.submit(0, n_predict=5)
    plan = h.scheduler.plan()
    h.scheduler.commit(plan, Result(failures=(Failed(0, "server_error", "Compute error."),)))
    assert h.scheduler.slots[1].is_idle and h.scheduler.slots[1].tokens == []
    assert isinstance(h.scheduler.take_events()[-1], Failed)


def test_counters_add_up() -> None:
    h = Harness()
    h.submit(0, n_predict=4)
    h.run()
    h.submit(1, n_predict=2)
    h.run()
    counters = h.scheduler.counters
    assert counters.prompt_tokens + counters.prompt_tokens_cached == 10
    assert counters.prompt_tokens_cached == 4
    assert counters.predicted_tokens == 6
    assert counters.predicted_after_first == 4
    assert counters.decodes == 6
    assert counters.n_tokens_max == 8


@pytest.mark.parametrize(
    ("wanted", "n_slots", "unified", "train", "sizes"),
    [
        (512, 2, False, 8192, (512, 256)),
        (600, 4, False, 8192, (1024, 256)),
        (128, 1, False, 8192, (256, 256)),
        (256, 4, True, 8192, (256, 256)),
        (20000, 1, False, 8192, (20224, 8192)),
    ],
)
def test_context_sizes(wanted: int, n_slots: int, unified: bool, train: int, sizes: tuple[int, int]) -> None:
    assert context_sizes(wanted, n_slots, unified, train) == sizes
