"""State that outlives slots, memory and process: an engine with a folder, and the next one on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.mailbox import Cancel, StopAt
from mlxserver.engine.prompt_speed import PromptSpeed
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Failed, Started, Token
from mlxserver.kv.disk.entry import DiskError
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.errors import ModelError
from mlxserver.sampling.params import SamplingParams
from tests.engine.bench import GREEDY, Bench
from tests.engine.disk_bench import PROMPT, Served
from tests.engine.test_faults import fail_once
from tests.models import tiny


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.close()


def running(served: Served, task_id: int) -> Callable[[], bool]:
    return lambda: any(isinstance(e, Token) and e.task_id == task_id for e in served.bench.events)


# -------------------------------------------------------------------- restart


def test_a_server_of_other_kv_types_reads_nothing_of_it(served: Served) -> None:
    served.ask(PROMPT)
    served.restart(cache_type_k="f16", cache_type_v="f16")
    assert served.ask(PROMPT)[1:] == (0, 0)


def test_state_crosses_no_identities(served: Served) -> None:
    served.ask(PROMPT, identity=CacheIdentity(tenant="a"))
    served.restart()
    assert served.ask(PROMPT, identity=CacheIdentity(tenant="b"))[1:] == (0, 0)
    assert served.ask(PROMPT)[1:] == (0, 0)
    assert served.ask(PROMPT, identity=CacheIdentity(tenant="a"))[1:] == (299, 299)


def test_completions_of_one_prompt_and_a_request_that_reuses_nothing(served: Served) -> None:
    served.ask(PROMPT)
    served.restart()
    cold = served.ask(PROMPT, cache_prompt=False)
    assert cold == (served.cold(PROMPT), 0, 0)
    served.restart()
    children = ((10**6, GREEDY), (10**6 + 1, SamplingParams(seed=1)))
    first = served.send(PROMPT, children=children)
    served.bench.finish(first, 10**6, 10**6 + 1)
    assert served.result(first) == (served.cold(PROMPT), 299, 299)
    assert served.result(10**6) == (served.cold(PROMPT), 299, 299)


def test_the_default_policy_restores_a_prompt_on_an_idle_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model is slower than the disk, which this tiny one is not."""
    monkeypatch.setattr("mlxserver.engine.assembly.prompt_speed", lambda module, states: PromptSpeed(0.1, 0))
    served = Served(tmp_path, cache_disk_prefetch="best-effort")
    served.ask(PROMPT)
    served.restart()
    assert served.ask(PROMPT)[2] == 299
    served.close()


# ------------------------------------------------------------------- what is written


@pytest.mark.parametrize("end", [StopAt, Cancel])
def test_what_a_request_evaluated_before_it_was_stopped_is_kept(end: type, served: Served) -> None:
    task_id = served.send(PROMPT, n=200)
    served.bench.wait(running(served, task_id))
    served.bench.engine.post(Cancel(task_id) if end is Cancel else StopAt(task_id, 1))
    served.restart()
    tokens, n_past, n_disk = served.ask([*PROMPT, 7])
    assert tokens == served.cold([*PROMPT, 7]) and n_past == n_disk == len(PROMPT)


def test_what_runs_when_the_server_stops_is_kept(served: Served) -> None:
    task_id = served.send(PROMPT, n=200)
    served.bench.wait(running(served, task_id))
    served.restart()
    assert served.ask([*PROMPT, 7])[1:] == (len(PROMPT), len(PROMPT))


def test_nothing_of_a_step_that_failed_is_written(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_once(monkeypatch, SlotStates, "prompt_chunk", lambda slot, n: n < 32)
    task_id = served.send(PROMPT)
    served.bench.finish(task_id)
    assert served.bench.of(task_id, Failed)
    served.restart()
    assert served.stats.blocks == 0
    assert served.ask(PROMPT) == (served.cold(PROMPT), 0, 0)


def test_only_what_is_new_is_written(served: Served) -> None:
    answer, *_ = served.ask(PROMPT)
    n = -(-(len(PROMPT) + 7) // 32)
    served.wait_written(n)
    served.ask(PROMPT)
    served.ask([*PROMPT, *answer, *range(64)], n=1)
    served.wait_written(n + 3)
    time.sleep(0.1)
    assert served.stats.written_blocks == n + 3


def test_moved_state_is_not_written(served: Served) -> None:
    served.ask(PROMPT)
    edited = [*PROMPT[:40], *PROMPT[90:]]
    _, n_past, _ = served.ask(edited, n_cache_reuse=16)
    assert n_past > 200, "most of it was moved"
    served.restart()
    tokens, n_past, n_disk = served.ask(edited)
    assert tokens == served.cold(edited) and n_past == n_disk == 40


def test_a_context_that_was_shifted_leaves_what_is_exact(tmp_path: Path) -> None:
    served = Served(tmp_path, n_ctx_slot=128, context_shift=True)
    served.ask(PROMPT[:100], n=80, n_keep=32)
    served.restart()
    tokens, n_past, n_disk = served.ask(PROMPT[:100])
    assert tokens == served.cold(PROMPT[:100]) and n_past == n_disk
    served.close()


def test_more_than_a_portion_is_written_bit_by_bit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxserver.engine.write_behind.PORTION_BYTES", 1)
    puts = []
    put = DiskStore.put
    monkeypatch.setattr(DiskStore, "put", lambda self, *args: puts.append(len(args[1])) or put(self, *args))
    served.ask(PROMPT)
    served.restart()
    assert puts == [*range(32, 300, 32), 307]
    assert served.ask(PROMPT)[1:] == (299, 299)


def test_a_queue_that_is_full_is_tried_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    stats, calls = DiskStore.stats, []

    def full(self: DiskStore) -> Any:
        calls.append(time.monotonic())
        found = stats(self)
        return replace(found, queued_bytes=2**60) if len(calls) < 4 else found

    monkeypatch.setattr(DiskStore, "stats", full)
    served.ask(PROMPT)
    end = time.monotonic() + 10
    while len(calls) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert calls[3] - calls[0] > 0.1, "it does not spin"
    monkeypatch.undo()
    served.restart()
    assert served.ask([*PROMPT, 3])[1] == 300


def test_a_slot_that_is_overwritten_before_its_state_was_written_is_written_from_the_trie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxserver.engine.write_behind.WriteBehind.note", lambda self, slot: None)
    served = Served(tmp_path, n_slots=1)
    served.ask(PROMPT)
    served.ask([4, 5, 6])
    served.restart()
    assert served.ask(PROMPT)[1:] == (299, 299)
    served.close()


# -------------------------------------------------------------------- policies


def slow_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Each file takes so long; the times at which one was read."""
    times: list[float] = []
    read = DiskStore.read

    def slowly(self: DiskStore, ref: Any) -> Any:
        time.sleep(seconds)
        times.append(time.perf_counter())
        return read(self, ref)

    monkeypatch.setattr(DiskStore, "read", slowly)
    return times


@pytest.mark.parametrize(
    ("fields", "restored", "least", "most"),
    [
        ({"cache_disk_prefetch": "wait"}, 299, 0.7, 60),
        ({"cache_disk_prefetch": "timeout", "cache_disk_timeout": 200}, 0, 0.19, 1.5),
        ({"cache_disk_prefetch": "timeout", "cache_disk_timeout": 30000}, 299, 0.7, 60),
        ({"cache_disk_prefetch": "best-effort"}, 0, 0, 1.5),
    ],
)
def test_policies_on_a_slow_disk(
    fields: Any, restored: int, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, **fields)
    served.ask(PROMPT)
    served.restart()
    slow_disk(monkeypatch, 0.08)
    begin = time.perf_counter()
    tokens, n_past, n_disk = served.ask(PROMPT)
    started = served.bench.of(next(served.ids) - 1, Started)[0].t
    assert tokens == served.cold(PROMPT) and n_past == n_disk == restored
    assert least <= started - begin <= most
    served.close()


def test_it_sleeps_while_the_disk_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.ask(PROMPT)
    served.restart()
    slow_disk(monkeypatch, 0.1)
    plans, plan = [], Scheduler.plan
    monkeypatch.setattr(Scheduler, "plan", lambda self: plans.append(1) or plan(self))
    task_id = served.send(PROMPT, n=1)
    time.sleep(0.5)
    assert len(plans) < 5
    assert served.result(task_id)[1] == 299


def test_others_run_while_one_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(tmp_path, n_slots=1)
    served.ask(PROMPT)
    served.restart()
    times = slow_disk(monkeypatch, 0.05)
    slow = served.send(PROMPT)
    assert served.ask([4, 5, 6])[0] == served.cold([4, 5, 6])
    assert len(times) < 9 and not served.bench.of(slow, Started)
    assert served.result(slow)[1:] == (299, 299)
    served.close()


def test_a_cancelled_request_stops_its_reading(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.ask(PROMPT)
    served.restart()
    times = slow_disk(monkeypatch, 0.05)
    task_id = served.send(PROMPT)
    time.sleep(0.12)
    served.bench.engine.post(Cancel(task_id))
    time.sleep(0.2)
    n = len(times)
    time.sleep(0.2)
    assert len(times) == n <= 4
    assert served.ask([4, 5, 6])[0] == served.cold([4, 5, 6])
    assert served.stats.prefetches["cancelled"] == 1
    assert served.stats.read_blocks == served.stats.wasted_blocks


# ---------------------------------------------------------------------- faults


def test_twenty_at_once_under_a_tiny_budget(tmp_path: Path) -> None:
    served = Served(tmp_path, n_slots=3, cache_ram=1)
    prompts = [[*PROMPT[i * 7 : i * 7 + 100 + 3 * i], i] for i in range(20)]
    wanted = [served.cold(prompt, 3) for prompt in prompts]
    for prompt in prompts:
        served.ask(prompt, 3)
    for policy in ("wait", "best-effort", "timeout"):
        served.restart(cache_disk_prefetch=policy, cache_disk_timeout=50)
        ids = [served.send(prompt, 3) for prompt in prompts]
        assert served.bench.finish(*ids) == wanted
        served.ask([1, 2, 3])
        stats = served.stats
        assert stats.read_blocks == stats.hit_blocks + stats.wasted_blocks
    served.close()


def damage(folder: Path, how: str) -> None:
    files = sorted(folder.rglob("*.safetensors"))
    assert files
    for path in files[:: 2 if how != "gone" else 1]:
        if how == "gone":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        elif how == "empty":
            path.write_bytes(b"")
        else:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "falcon_h1"])
@pytest.mark.parametrize("how", ["truncated", "flipped", "empty", "gone"])
@pytest.mark.parametrize("when", ["before", "while it runs"])
def test_damaged_files_cost_reuse_at_most(kind: str, how: str, when: str, tmp_path: Path) -> None:
    served = Served(tmp_path, getattr(tiny, kind))
    served.ask(PROMPT)
    served.close()
    if when == "before":
        damage(tmp_path, how)
    served.restart()
    if when != "before":
        damage(tmp_path, how)
    assert served.ask(PROMPT)[0] == served.cold(PROMPT)
    assert served.ask([*PROMPT, 3])[0] == served.cold([*PROMPT, 3])
    served.restart()
    assert served.ask(PROMPT)[0] == served.cold(PROMPT)
    served.close()


@pytest.mark.parametrize("method", ["find", "missing", "put", "read"])
def test_a_store_that_raises_fails_no_request(
    method: str, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.ask(PROMPT)
    served.restart()
    wanted = served.cold(PROMPT), served.cold([*PROMPT, 4, 5])

    def broken(*_: Any, **__: Any) -> Any:
        raise DiskError("broken")

    monkeypatch.setattr(DiskStore, method, broken)
    assert served.ask(PROMPT)[0] == wanted[0]
    assert served.ask([*PROMPT, 4, 5])[0] == wanted[1]
    monkeypatch.undo()


def test_an_engine_that_failed_goes_on_with_its_disk(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.ask(PROMPT)
    served.wait_written(10)
    running_id = served.send([5, 6, 7], n=400)
    served.bench.wait(running(served, running_id))
    fail_once(monkeypatch, Scheduler, "plan")
    served.bench.finish(running_id)
    assert served.bench.of(running_id, Failed)
    assert served.ask(PROMPT) == (served.cold(PROMPT), 299, 299)


def test_one_that_waits_for_the_disk_outlives_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.ask(PROMPT)
    served.restart()
    slow_disk(monkeypatch, 0.05)
    task_id = served.send(PROMPT)
    time.sleep(0.15)
    fail_once(monkeypatch, Scheduler, "plan")
    other = served.send([4, 5, 6])
    served.bench.finish(task_id, other)
    assert served.result(task_id)[:2] == (served.cold(PROMPT), 299)


# ---------------------------------------------------------------------- others


def test_a_second_server_on_the_folder_is_refused(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="in use by another server"):
        Bench(tiny.llama, cache_disk=str(tmp_path))


def test_blocks_on_disk_are_told_of(tmp_path: Path) -> None:
    served = Served(tmp_path, kv_events=True)
    changes: list[Any] = []
    served.bench.engine._emit_blocks = changes.extend
    served.ask(PROMPT)
    deadline = time.monotonic() + 10

    def told() -> set[bytes]:
        return {change.block.hash for change in changes if change.tier == "disk"}

    while len(told()) < len(PROMPT) // 32 and time.monotonic() < deadline:
        time.sleep(0.02)
    in_slot = {change.block.hash for change in changes if change.tier == "slot"}
    assert told() == in_slot and len(told()) == (len(PROMPT) + 7) // 32
    served.close()
