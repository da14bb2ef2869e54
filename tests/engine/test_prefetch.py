"""Reading ahead, over a reader that is told when to read: each policy, each phase of a restore."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mlxserver.engine.plan import Load
from mlxserver.engine.prefetch_policy import CHUNK_TOKENS, UNKNOWN_SECONDS_PER_TOKEN, PrefetchPolicy
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Started
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.trie import Node
from mlxserver.sampling.params import SamplingParams
from tests.engine.scripted_disk import BYTES, SNAPSHOT, Text, Tiered

N = 3 * CHUNK_TOKENS - 100
STORED = tuple(range(1000, 1000 + N))
PROMPT = (*STORED, 1, 2, 3)


def tiered(*args: Any, **fields: Any) -> Tiered:
    h = Tiered(*args, **fields)
    h.store(STORED)
    return h


def other(seed: int, n: int = N) -> tuple[int, ...]:
    """A stored sequence that shares nothing with others."""
    return tuple(range(10000 * seed, 10000 * seed + n))


# ------------------------------------------------------------------- policies


def test_wait_reads_all_before_the_prompt_begins() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    for _ in range(3):
        h.settle()
        h.time.now += 1000
        assert not h.of(0, Started)
        assert h.restores.wake_at is None
        h.read()
    h.settle()
    assert h.past(0) == (N, N)
    assert h.books.stops["complete"] == 1
    assert h.books.hit.files == h.books.read.files == -(-N // 32)
    h.assert_nothing_is_held()


def test_what_arrived_while_it_waited_for_a_slot_is_there_at_its_turn() -> None:
    h = tiered("best-effort", n_slots=1)
    h.ask(0, (5, 6, 7), n_predict=30)
    h.step()
    h.ask(1, PROMPT)
    for _ in range(3):
        h.step()
        h.time.now += 1000
        assert h.restores.wake_at is None, "no deadline before it could start"
        h.read()
    h.run()
    assert h.past(1) == (N, N)
    assert sum(h.books.stops.values()) == h.books.stops["complete"] == 1
    h.assert_nothing_is_held()


def test_best_effort_goes_on_while_the_disk_is_faster_than_the_model() -> None:
    h = tiered("best-effort")
    h.ask(0, PROMPT)
    one = CHUNK_TOKENS * 0.01
    for chunk in range(3):
        h.settle()
        assert h.restores.wake_at == pytest.approx(100 + (chunk + 1) * one)
        h.time.now += one * 0.9
        h.read()
    h.settle()
    assert h.past(0) == (N, N)
    h.assert_nothing_is_held()


@pytest.mark.parametrize("n_in_time", [0, 1, 2])
def test_best_effort_is_late_by_one_chunk_at_most(n_in_time: int) -> None:
    h = tiered("best-effort")
    h.ask(0, PROMPT)
    h.read(n_in_time)
    h.settle()
    assert h.reader.pick()
    late = (n_in_time + 1) * CHUNK_TOKENS * 0.01
    h.time.now += late - 0.001
    h.settle()
    assert not h.of(0, Started)
    h.time.now += 0.001
    h.step()
    assert h.past(0) == (n_in_time * CHUNK_TOKENS,) * 2
    assert h.books.stops["scheduled"] == 1
    h.read()  # the file that was in flight
    assert not h.reader.pick(), "no new chunk is begun"
    h.assert_nothing_is_held()


def test_a_deadline_that_passes_while_no_slot_is_free_wakes_nobody_twice() -> None:
    h = tiered("best-effort", n_slots=1)
    h.ask(0, PROMPT)
    h.ask(1, (5, 6, 7), n_predict=100)
    h.step()
    h.time.now += 10
    h.step()
    assert h.restores.wake_at is None and not h.books.stops["scheduled"]
    h.read()
    h.time.now += 2
    assert h.restores.wake_at is not None, "what came moves the deadline"
    h.step()
    assert h.restores.wake_at is None
    h.read()
    h.run()
    assert h.past(0)[0] >= 2 * CHUNK_TOKENS
    while h.reader.pick():
        h.read()
    h.assert_nothing_is_held()


def test_before_the_first_prompt_the_model_is_taken_for_fast() -> None:
    h = tiered("best-effort", token_seconds=0.0)
    h.ask(0, PROMPT)
    assert h.restores.wake_at == pytest.approx(100 + CHUNK_TOKENS * UNKNOWN_SECONDS_PER_TOKEN)


def test_timeout_counts_from_entering_the_queue() -> None:
    h = tiered("timeout", seconds=7.0, n_slots=1)
    h.ask(0, (5, 6, 7), n_predict=40)
    h.step()
    h.ask(1, PROMPT)
    h.read()
    h.time.now += 6.9
    h.step()
    assert not h.books.stops["timeout"]
    assert h.restores.wake_at == pytest.approx(107)
    h.time.now += 0.1
    h.step()
    assert h.books.stops["timeout"] == 1
    assert not h.reader.pick()
    h.run()
    assert h.past(1) == (CHUNK_TOKENS, CHUNK_TOKENS)
    h.assert_nothing_is_held()


def test_timeout_waits_for_the_disk_until_its_budget_is_over() -> None:
    h = tiered("timeout", seconds=7.0)
    h.ask(0, PROMPT)
    h.read()
    h.time.now += 6.9
    h.settle()
    assert not h.of(0, Started)
    h.time.now += 0.2
    h.step()
    assert h.past(0) == (CHUNK_TOKENS, CHUNK_TOKENS)
    h.assert_nothing_is_held()


@pytest.mark.parametrize("n_chunks", [0, 1, 2])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_budget_that_ends_in_any_phase(n_chunks: int, in_flight: bool) -> None:
    h = tiered("timeout", seconds=1.0)
    h.ask(0, PROMPT)
    h.read(n_chunks)
    if in_flight:
        h.reader.pick()
    h.time.now += 1.0
    h.step()
    assert h.past(0) == (n_chunks * CHUNK_TOKENS,) * 2
    assert h.books.stops["timeout"] == 1
    assert h.trie.reserved == 0 or in_flight, "what was not begun has given its room back"
    if in_flight:
        h.read()
    h.run()
    h.assert_nothing_is_held()


def test_a_budget_that_ends_while_it_waits_for_room() -> None:
    h = tiered("timeout", limit=BYTES * (N + 200), seconds=5.0, n_slots=1)
    h.store(other(2))
    h.ask(0, (5, 6, 7), n_predict=40)
    h.step()
    h.ask(1, (*other(2), 1))
    h.ask(2, PROMPT)
    assert len(h.reader.readings) == 1
    h.time.now += 5.0
    h.step()
    assert h.books.stops["timeout"] == 2
    h.run()
    h.assert_nothing_is_held()
    assert h.past(2) == (0, 0)


# ---------------------------------------------------------------- what is read


def test_only_what_memory_does_not_have_is_read() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT[:100])
    h.read()  # 100 tokens
    h.run()
    assert h.past(0) == (99, 99)
    before = h.books.read.files
    h.ask(1, PROMPT, id_slot=0)
    h.read(3)
    h.run()
    assert h.books.read.files - before == -(-N // 32) - 3
    n_past, n_disk = h.past(1)
    assert n_past == N and n_disk == N - 100
    h.assert_nothing_is_held()


def test_what_memory_has_is_not_read() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.read(3)
    h.run()
    h.ask(1, PROMPT)
    h.run()
    assert h.reader.n_chunks == 3
    assert h.past(1) == (len(PROMPT) - 1, 0)


def test_what_memory_lost_while_the_task_waited_is_read_at_its_turn() -> None:
    h = tiered("wait", n_slots=1)
    h.ask(0, PROMPT)
    h.read(3)
    h.run()
    h.ask(1, (5, 6, 7), n_predict=20)
    h.step()
    h.ask(2, PROMPT)
    assert not h.reader.readings
    for slot in h.scheduler.slots:
        assert not slot.is_idle
    h.trie.clear()
    h.time.now += 1
    h.run(30)
    assert h.reader.pick() and not h.of(2, Started)
    h.read(3)
    h.run()
    assert h.past(2) == (N, N)
    h.assert_nothing_is_held()


def test_for_a_prompt_that_is_too_long_nothing_is_read() -> None:
    h = tiered("wait")
    h.ask(0, (*STORED, *range(4000)))
    h.run()
    assert h.has_ended(0) and h.reader.n_chunks == 0


def test_a_prompt_that_is_refused_gives_back_what_was_read_for_it() -> None:
    h = tiered("wait", cuts=False)
    h.ask(0, PROMPT, n_cache_reuse=8)
    h.read(3)
    h.step()
    assert h.has_ended(0) and not h.of(0, Started)
    assert h.books.wasted.files == h.books.read.files > 0
    h.assert_nothing_is_held()


@pytest.mark.parametrize("fields", [{"cache_prompt": False}, {"is_embedding": True}])
def test_tasks_that_reuse_nothing_read_nothing(fields: dict[str, bool]) -> None:
    h = tiered("wait")
    h.ask(0, PROMPT, **fields)
    assert h.reader.readings == []
    h.step()
    assert h.of(0, Started) or h.has_ended(0)


def test_nothing_crosses_identities() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT, identity=CacheIdentity(tenant="b"))
    assert h.reader.readings == []


def test_a_few_tokens_are_rather_evaluated() -> None:
    h = Tiered("wait")
    h.store(range(15))
    h.ask(0, range(40))
    assert h.reader.readings == []
    h.run()


def test_the_last_token_of_a_prompt_is_evaluated() -> None:
    h = tiered("wait")
    h.ask(0, STORED)
    h.read(3)
    h.step()
    assert h.past(0) == (N - 1, N - 1)


def test_two_prompts_read_what_they_share_once() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.ask(1, (*STORED, 7, 8, 9))
    assert len(h.reader.readings) == 1
    h.read(3)
    h.run()
    assert h.reader.n_chunks == 3
    assert h.past(0) == (N, N)
    assert h.past(1)[0] == N and h.past(1)[1] == 0
    h.assert_nothing_is_held()


def test_one_that_waits_for_anothers_reading_has_a_deadline_too() -> None:
    h = tiered("best-effort")
    h.ask(0, PROMPT)
    h.ask(1, (*STORED, 7, 8, 9))
    h.read()
    h.time.now += 2 * CHUNK_TOKENS * 0.01 - 0.01
    h.settle()
    assert not h.of(0, Started) and not h.of(1, Started), "a chunk came in time for both"
    h.time.now += 0.01
    h.step()
    assert h.past(0)[0] == CHUNK_TOKENS
    h.run()
    assert h.past(1)[0] >= CHUNK_TOKENS
    h.assert_nothing_is_held()


def test_completions_of_one_prompt_wait_together() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT, children=((1, SamplingParams()),))
    h.settle()
    h.read(3)
    h.run()
    assert h.past(0) == h.past(1) == (N, N)
    h.assert_nothing_is_held()


# ------------------------------------------------------------------ who waits


def test_a_task_that_waits_for_the_disk_lets_others_pass() -> None:
    h = tiered("wait", n_slots=1)
    h.ask(0, PROMPT)
    h.ask(1, (5, 6, 7))
    h.run(10)
    assert h.has_ended(1) and not h.of(0, Started)
    h.read(3)
    h.run()
    assert h.past(0) == (N, N)


def test_one_that_none_may_pass_lets_others_pass_while_it_waits_for_the_disk() -> None:
    h = tiered("wait")
    h.ask(0, (3, 4), n_predict=200, id_slot=0)
    h.step()
    h.ask(1, PROMPT, children=((2, SamplingParams()),))
    for task_id in range(10, 30):
        h.ask(task_id, (5, 6, 7), id_slot=1)
        h.run(4) if h.is_resting else [h.step() for _ in range(6)]
    h.scheduler.cancel(0)
    for _ in range(4):
        h.step()
    assert not h.of(1, Started)
    h.ask(40, (5, 6, 7))
    h.run(8)
    assert h.has_ended(40)
    h.read(3)
    h.run()
    assert h.past(1) == (N, N)


@pytest.mark.parametrize("limit", [None, BYTES * (N + 200)])
def test_those_that_could_start_are_read_for_first(limit: int | None) -> None:
    """With room for both, and with room for one."""
    h = tiered("wait", limit=limit)
    h.store(other(2))
    h.ask(0, (5, 6, 7), n_predict=60, id_slot=0)
    h.step()
    node = fill(h)
    h.trie.pin(node)
    h.ask(1, (*other(2), 1), id_slot=0)
    h.ask(2, PROMPT)
    h.trie.unpin(node)
    for _ in range(3):
        h.step()
        h.read()
    h.step()
    assert h.past(2) == (N, N) and not h.of(1, Started)
    h.run() if limit is None else h.run(70)
    h.read(3)
    h.run()
    assert h.past(1) == (N, N)
    h.assert_nothing_is_held()


# ----------------------------------------------------------------------- room


def test_a_restore_that_finds_no_room_keeps_its_place_and_is_tried_again() -> None:
    h = tiered("wait", limit=BYTES * (N + 200))
    h.store(other(2))
    h.store(other(3))
    for task_id, prompt in enumerate((PROMPT, (*other(2), 1), (*other(3), 1))):
        h.ask(task_id, prompt)
    for task_id in range(3):
        h.settle()
        assert len(h.reader.readings) == 1
        assert not h.of(task_id, Started)
        h.read(3)
        h.run()
        assert h.past(task_id) == (N, N)
    h.assert_nothing_is_held()


def test_room_is_made_by_a_step() -> None:
    """The first of two prompts takes its state over and runs on; nobody asks for the second one again."""
    h = tiered("wait", limit=BYTES * (N + 200))
    h.store(other(2))
    h.ask(0, PROMPT, n_predict=50)
    h.ask(1, (*other(2), 1), n_predict=1)
    h.read(3)
    for _ in range(2):
        h.step()
    assert h.of(0, Started) and h.reader.pick()
    h.read(3)
    h.run()
    assert h.past(1) == (N, N)
    h.assert_nothing_is_held()


def test_one_that_waits_for_room_starts_when_memory_has_its_state() -> None:
    h = tiered("wait", limit=BYTES * (N + 100))
    node = fill(h)
    h.trie.pin(node)
    h.ask(0, (5, 6, 7), n_predict=20)
    h.step()
    h.ask(1, PROMPT)
    h.step()
    assert not h.of(1, Started) and not h.reader.readings
    h.trie.unpin(node)
    h.trie.insert(BASE_IDENTITY, STORED, lambda n: BYTES * n, lambda start, end: Text(STORED[:end], start))
    h.step()
    assert h.past(1) == (N, 0)
    h.run()
    h.assert_nothing_is_held()


def test_without_room_that_anybody_could_make_it_goes_on_without_the_restore() -> None:
    h = tiered("wait", limit=BYTES * (N + 200))
    node = fill(h)
    h.trie.pin(node)  # held by nobody that would ever let go
    h.ask(0, PROMPT)
    h.run()
    assert h.past(0) == (0, 0)
    assert h.books.stops["no_room"] == 1
    h.trie.unpin(node)
    h.assert_nothing_is_held()


def fill(h: Tiered) -> Node:
    """Something stored that no prompt here shares."""
    tokens = other(9, 300)
    h.trie.insert(BASE_IDENTITY, tokens, lambda n: BYTES * n, lambda start, end: Text(tokens[:end], start))
    return h.trie.match(BASE_IDENTITY, tokens).nodes[-1]


def test_of_a_prefix_larger_than_memory_the_part_that_fits_is_read() -> None:
    h = tiered("wait", limit=BYTES * 400)
    h.ask(0, PROMPT)
    while h.reader.readings:
        h.read()
    h.run()
    n_past, n_disk = h.past(0)
    assert n_past == n_disk == 384
    h.assert_nothing_is_held()


def test_admission_drops_what_was_used_longest_ago_but_not_what_the_prompt_needs() -> None:
    h = tiered("wait", limit=BYTES * (N + 200))
    h.ask(0, PROMPT[:101])
    h.read()
    h.run()
    fill(h)
    h.ask(1, PROMPT)
    h.read(3)
    h.run()
    assert h.past(1) == (N, N - 101)
    h.assert_nothing_is_held()


# --------------------------------------------------------------------- cancel


@pytest.mark.parametrize("policy", ["best-effort", "timeout", "wait"])
@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("n_chunks", [0, 1, 2, 3])
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("busy", [False, True])
def test_a_cancel_in_any_phase_gives_everything_back(
    policy: Any, cuts: bool, n_chunks: int, in_flight: bool, busy: bool
) -> None:
    h = tiered(policy, cuts=cuts, n_slots=1, seconds=1e6, token_seconds=1e3)
    if busy:
        h.ask(0, (5, 6, 7), n_predict=20)
        h.step()
    h.ask(1, PROMPT)
    h.read(n_chunks)
    in_flight = in_flight and h.reader.pick()
    h.scheduler.cancel(1)
    assert h.trie.reserved == 0 or in_flight
    assert not h.reader.readings or in_flight
    assert not any(node.pins for node in h.trie.nodes())
    if in_flight:
        h.read()
    assert h.trie.reserved == 0
    assert h.books.hit.files == 0 and h.books.read.files == h.books.wasted.files
    h.run() if busy else h.settle()
    assert not h.of(1, Started)
    h.assert_nothing_is_held()


def test_a_cancel_while_it_waits_for_room_lets_the_next_one_have_it() -> None:
    h = tiered("wait", limit=BYTES * (N + 200))
    h.store(other(2))
    h.store(other(3))
    for task_id, prompt in enumerate((PROMPT, (*other(2), 1), (*other(3), 1))):
        h.ask(task_id, prompt)
    h.scheduler.cancel(1)
    h.scheduler.cancel(0)
    h.read(3)
    h.run()
    assert h.past(2) == (N, N)
    h.assert_nothing_is_held()


# --------------------------------------------------------- state in one piece


def test_state_that_cannot_be_cut_counts_only_with_its_snapshot() -> None:
    h = tiered("wait", cuts=False)
    h.ask(0, PROMPT)
    h.read(2)
    assert h.trie.n_nodes == 0 and h.trie.reserved > 0
    h.read()
    assert h.trie.n_snapshots == 1 and h.trie.reserved == 0
    h.run()
    assert h.past(0) == (N, N)
    assert h.books.hit.nbytes == BYTES * N + SNAPSHOT
    h.assert_nothing_is_held()


def test_without_its_snapshot_nothing_of_it_is_used() -> None:
    h = tiered("timeout", cuts=False, seconds=5.0)
    h.ask(0, PROMPT)
    h.read(2)
    h.time.now += 5
    h.step()
    assert h.past(0) == (0, 0)
    h.run()
    assert h.books.wasted.files == 16
    h.assert_nothing_is_held()


def test_best_effort_with_state_in_one_piece_is_late_by_one_chunk_at_most() -> None:
    h = tiered("best-effort", cuts=False)
    h.ask(0, PROMPT)
    h.read(2)
    h.time.now += CHUNK_TOKENS * 0.01
    h.step()
    assert h.past(0) == (0, 0)


# --------------------------------------------------------------------- faults


@pytest.mark.parametrize("n_chunks", [0, 1, 2])
def test_a_read_error_leaves_what_came_before_it(n_chunks: int) -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.read(n_chunks)
    h.read(error="a block is damaged")
    h.run()
    assert h.past(0) == (n_chunks * CHUNK_TOKENS,) * 2
    assert h.books.stops["error"] == 1
    h.assert_nothing_is_held()


def test_state_that_cannot_be_published_is_dropped() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.publisher.raises = True
    h.read()
    h.run()
    assert h.past(0) == (0, 0)
    assert h.books.stops["error"] == 1 and h.books.wasted.files == 8
    h.assert_nothing_is_held()


def test_tasks_go_on_waiting_after_the_state_was_lost() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.read()
    h.reader.pick()
    old = h.scheduler
    tier = h.make_tier(cuts=True, limit=None)
    h.scheduler = Scheduler(h.config, h.states, frozenset(), h.clock, h.trie, tier=tier)
    h.scheduler.inherit(old)
    while h.reader.pick():
        h.read()
    h.run()
    assert h.past(0) == (N, N)
    assert h.books.stops == {**h.books.stops, "cancelled": 1, "complete": 1}
    h.assert_nothing_is_held()


# ----------------------------------------------------------------- all at once


@pytest.mark.parametrize("policy", ["best-effort", "timeout", "wait"])
@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_twenty_requests_at_once_under_a_tiny_budget(policy: Any, cuts: bool, seed: int) -> None:
    """With cancels, errors and slow files at any time: everybody is answered, nothing is left."""
    rng = random.Random(seed)
    h = Tiered(policy, cuts=cuts, limit=BYTES * 700, seconds=rng.choice([1, 50]), n_slots=3)
    prompts = []
    for i in range(20):
        stored = other(1 + i % 7, rng.choice([20, 130, 400, 600, 900]))
        h.store(stored)
        prompts.append((*stored, 3, i))
    for i, prompt in enumerate(prompts):
        h.ask(i, prompt, id_slot=rng.choice([-1, -1, -1, 0]))
    cancelled: set[int] = set()
    for _ in range(5000):
        open_tasks = {i for i in range(20) if not h.has_ended(i)} - cancelled
        if not open_tasks:
            break
        if h.is_resting:
            wake_at = h.restores.wake_at
            assert h.reader.pick() or wake_at is not None, "the engine would sleep for ever"
            if wake_at is not None and (not h.reader.pick() or rng.random() < 0.2):
                h.time.now = max(h.time.now, wake_at)
            elif h.reader.pick():
                h.read(error="damaged" if rng.random() < 0.05 else "")
        elif h.reader.pick() and rng.random() < 0.2:
            h.read()
        if rng.random() < 0.01:
            cancelled.add(task_id := rng.choice(sorted(open_tasks)))
            h.scheduler.cancel(task_id)
        h.time.now += 0.01
        h.step()
    else:
        raise AssertionError("not everybody was answered")
    while h.reader.pick():
        h.read()
    h.assert_nothing_is_held()


def test_a_policy_names_its_stop() -> None:
    for name, reason in (("best-effort", "scheduled"), ("timeout", "timeout")):
        assert PrefetchPolicy(name, 1.0).reason == reason  # type: ignore[arg-type]


def test_the_state_that_was_read_is_loaded_like_any_other() -> None:
    h = tiered("wait")
    h.ask(0, PROMPT)
    h.read(3)
    plan = h.step()
    (load,) = (move for move in plan.moves if isinstance(move, Load))
    assert (load.start, load.end, load.node.end) == (0, N, N)
