"""A thousand requests that go away, in every phase: no ghost, slots free within a step, books that add up."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.engine import Engine
from mlxserver.engine.mailbox import Cancel
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.slot import SlotState
from mlxserver.engine.task import Event, Failed, Finished, PromptProgress, Started, Token, Vectors
from mlxserver.kv.disk.store import DiskStore
from mlxserver.sampling.params import Grammar, SamplingParams
from tests.engine.bench import CONFIG, GREEDY, Bench, oracle
from tests.models import tiny

N_ABORTED = 1000
AT_ONCE = 12
DIGITS = replace(GREEDY, grammar=Grammar("gbnf", 'root ::= "<" [0-9]{30,60} ">"'))
PROMPTS = [
    [(13 * i + 11 * j) % 250 for j in range(n)] for i, n in enumerate([3, 9, 20, 40, 70, 150, 150, 200])
]
EMBEDDED = list(range(30))
PHASES = {
    "queued",
    "restored from disk",
    "prompt",
    "between chunks",
    "waiting for its parent",
    "joining",
    "generating",
    "with a grammar",
    "embedding",
    "parent",
}


class Aborts:
    """Cancels tasks when something happens to them, on the engine's thread as well as from outside."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self.triggers: dict[int, tuple[type, int]] = {}
        """Task -> the kind of event, and how many of them, at which it goes away."""
        self.families: dict[int, list[int]] = {}
        """Task -> those that go with it, in their order."""
        self.wanted: dict[int, str] = {}
        """Task -> the phase in which it goes away."""
        self.posted: set[int] = set()
        self.phases: Counter[str] = Counter()
        self.ghosts: list[Any] = []
        self.ended: set[int] = set()
        self._gone: set[int] = set()
        bench.engine._emit = self._emit(bench.engine._emit)
        monkeypatch.setattr(Engine, "_read_mail", self._read_mail(Engine._read_mail))

    def cancel(self, task_id: int) -> None:
        self.bench.engine.post(Cancel(task_id))
        self.posted.add(task_id)

    def _emit(self, emit: Any) -> Any:
        def emit_and_cancel(events: list[Event]) -> None:
            self.ghosts += [event for event in events if event.task_id in self._gone]
            self.ended |= {event.task_id for event in events if isinstance(event, (Finished, Failed))}
            emit(events)
            for event in events:
                kind, n = self.triggers.get(event.task_id, (Finished, 0))
                if isinstance(event, kind) and n > 0:
                    self.triggers[event.task_id] = kind, n - 1
                    if n == 1:
                        for task_id in self.families[event.task_id]:
                            self.cancel(task_id)

        return emit_and_cancel

    def _read_mail(self, read_mail: Any) -> Any:
        """What was posted before a round reads its mail has no place anywhere when it plans."""

        def read(engine: Engine, scheduler: Scheduler, seconds: float | None) -> None:
            for task_id, phase in list(self.wanted.items()):
                if phase_of(scheduler, task_id) == phase:
                    del self.wanted[task_id]
                    self.cancel(task_id)
            leaving = set(self.posted) - self._gone
            for task_id in leaving:
                self.phases[phase_of(scheduler, task_id)] += 1
            read_mail(engine, scheduler, seconds)
            waiting = {task.id for task in scheduler._placement.waiting}
            held = leaving & ({*scheduler.running()} | waiting | scheduler.restores._restores.keys())
            self.ghosts += [("still there", task_id) for task_id in held]
            self._gone |= leaving

        return read


def phase_of(scheduler: Scheduler, task_id: int) -> str:
    slot = scheduler._slot_of(task_id)
    if slot is None:
        restore = scheduler.restores._restores.get(task_id)
        waits = any(task.id == task_id for task in scheduler._placement.waiting)
        if restore is not None and restore.reading is not None and not restore.is_settled:
            return "restored from disk"
        return "queued" if waits else "on its way, or ended"
    assert slot.task is not None
    match slot.state:
        case SlotState.EMBEDDING:
            return "embedding"
        case SlotState.WAIT_PARENT:
            return "waiting for its parent"
        case SlotState.GENERATING if slot.n_launched <= 1:
            return "joining"
        case SlotState.GENERATING:
            return "with a grammar" if slot.task.sampling.grammar else "generating"
        case _ if slot.children:
            return "parent"
        case _:
            return "between chunks" if slot.n_prompt_done > slot.n_past + CONFIG.n_ubatch else "prompt"


def ids() -> Iterator[int]:
    yield from range(10**6)


def test_a_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    disk = {"cache_disk": str(tmp_path), "cache_disk_prefetch": "wait"}
    earlier = Bench(tiny.llama, **disk)
    on_disk = [[*PROMPTS[-1], i, *range(100, 180)] for i in range(30)]
    for i, prompt in enumerate(on_disk):
        earlier.submit(i, prompt, n_predict=1)
    earlier.finish(*range(len(on_disk)))
    earlier.close()

    module = tiny.llama()
    cold = {tuple(prompt): oracle(module, prompt, 12) for prompt in (*PROMPTS, *on_disk)}
    read = DiskStore.read
    monkeypatch.setattr(DiskStore, "read", lambda self, ref: time.sleep(0.002) or read(self, ref))
    bench = Bench(tiny.llama, embedding=True, pooling="mean", cache_ram=1, **disk)
    aborts, new_id = Aborts(bench, monkeypatch), ids()
    staying: dict[int, tuple[int, ...]] = {}
    open_tasks: list[int] = []
    staying_vectors: list[int] = []
    while len(aborts.posted) < N_ABORTED:
        task_id = next(new_id)
        prompt = rng.choice(on_disk) if rng.random() < 0.2 else rng.choice(PROMPTS)
        if rng.random() < 0.1:
            staying[task_id] = tuple(prompt)
            bench.submit(task_id, prompt, n_predict=12)
            open_tasks.append(task_id)
            continue
        fields: dict[str, Any] = {
            "n_predict": 80,
            "return_progress": True,
            "cache_prompt": rng.random() < 0.8,
        }
        kind = rng.choice(["plain", "plain", "plain", "sampled", "grammar", "children", "embedding"])
        family = [task_id]
        leaves = rng.choice(
            [
                (Started, 1),
                (PromptProgress, rng.randrange(2, 4)),
                (Token, 1),
                (Token, rng.randrange(2, 30)),
                None,
                None,
            ]
        )
        if kind == "embedding":  # with two others it is more than a batch
            fields, prompt = {"is_embedding": True}, EMBEDDED
            for _ in range(CONFIG.n_batch // len(EMBEDDED)):
                open_tasks.append(next(new_id))
                staying_vectors.append(open_tasks[-1])
                bench.submit(open_tasks[-1], prompt, **fields)
        elif kind == "grammar":
            fields["sampling"] = DIGITS
        elif kind == "sampled":
            fields["sampling"] = SamplingParams(seed=task_id)
        elif kind == "children":
            family += [next(new_id), next(new_id)]
            fields["children"] = ((family[1], GREEDY), (family[2], SamplingParams(seed=1)))
        leaving = rng.sample(family, len(family))
        who = task_id if leaves and leaves[0] is PromptProgress else leaving[0]
        if prompt in on_disk and len(family) == 1:
            aborts.wanted[task_id] = "restored from disk"
        elif kind == "embedding":
            aborts.wanted[task_id] = "embedding"
        elif leaves is not None:
            aborts.triggers[who], aborts.families[who] = leaves, leaving
        bench.submit(task_id, prompt, **fields)
        if leaves is None and task_id not in aborts.wanted:
            time.sleep(rng.choice([0, 0.001]))
            for each in leaving:
                aborts.cancel(each)
        open_tasks += family
        _wait(bench, aborts, open_tasks, AT_ONCE)
    _wait(bench, aborts, open_tasks, 0)
    got = bench.finish(*staying)
    bench.finish(*staying_vectors)
    vectors = [bench.of(task_id, Vectors)[0].vectors[0] for task_id in staying_vectors]
    assert all(vector == pytest.approx(vectors[0], abs=1e-6) for vector in vectors)  # padded with whom it was
    assert got == [cold[prompt] for prompt in staying.values()]
    _settle(bench)
    assert aborts.ghosts == [] and bench.errors == []
    assert {phase for phase, n in aborts.phases.items() if n >= 5} >= PHASES, aborts.phases
    _check_books(bench)
    for i, prompt in enumerate((*PROMPTS, *on_disk)):
        bench.submit(10**6 + i, prompt, n_predict=12)
    again = bench.finish(*range(10**6, 10**6 + len(cold)))
    assert again == [cold[tuple(prompt)] for prompt in (*PROMPTS, *on_disk)]
    bench.close()


def n_open(aborts: Aborts, tasks: list[int]) -> int:
    """Tasks that neither ended nor left; those that did are taken off the list."""
    tasks[:] = [task_id for task_id in tasks if task_id not in aborts.ended | aborts.posted]
    return len(tasks)


def _wait(bench: Bench, aborts: Aborts, tasks: list[int], n: int) -> None:
    bench.wait(lambda: n_open(aborts, tasks) <= n)


def _settle(bench: Bench) -> None:
    end = time.monotonic() + 10
    while (
        any(slot.is_processing for slot in bench.engine.snapshot().slots) or bench.engine.snapshot().deferred
    ):
        assert time.monotonic() < end, "a slot is not free"
        time.sleep(0.01)


def _check_books(bench: Bench) -> None:
    engine = bench.engine
    assert engine._scheduler is not None
    with engine._lock:
        engine._scheduler.check()
        trie = engine._scheduler.reuse._trie
        assert trie is not None
        trie.check()
        assert trie.reserved == 0 and not any(node.pins for node in trie.nodes())
    found = engine.snapshot()
    started = [event for event in bench.events if isinstance(event, Started)]
    assert found.counters.predicted_tokens == sum(isinstance(event, Token) for event in bench.events)
    assert found.counters.prompt_tokens_cached <= sum(event.n_past for event in started)
    assert found.disk is not None
    assert found.disk.read_blocks == found.disk.hit_blocks + found.disk.wasted_blocks > 0
