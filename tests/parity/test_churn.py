"""Many requests that come, go and share slots at random: each one's tokens are those of the model alone."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine import adapters as engine_adapters
from mlxserver.engine.compiled_steps import CompiledSteps
from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.mailbox import Cancel, LoadAdapter, SlotAction, SlotActionKind, SlotOutcome, StopAt
from mlxserver.engine.task import Failed, Finished, Started, Token
from mlxserver.kv.identity import Adapters, CacheIdentity
from mlxserver.kv.slot_kv import BlockShape
from mlxserver.models.lora.loaded import LoadedAdapters
from tests.engine.bench import GREEDY, Bench
from tests.models import tiny
from tests.models.lora.adapters import adapter
from tests.parity.adapted import Adapted, load_by_seed

N_SLOTS, N_CTX_SLOT = 5, 256
LONGEST = 90
"""Tokens that a request asks for at most."""
N_REQUESTS = 120
N_OPEN = 9
"""Requests at a time: some wait for a slot."""


class Churn:
    """Random requests, and what of their tokens is known beforehand."""

    def __init__(self, seed: int, bench: Bench, cold: Callable[..., list[int]], folder: Path) -> None:
        self._rng = random.Random(seed)
        self._bench = bench
        self._cold = cold
        self._folder = folder
        self._answers: dict[tuple[Any, ...], list[int]] = {}
        self._ids = iter(range(10**6))
        self._stems = [[self._token() for _ in range(n)] for n in (3, 9, 20, 40, 70)]
        self.expected: dict[int, list[int]] = {}
        """Task -> its tokens, as far as it goes without a shift of its context."""
        self.cut: set[int] = set()
        """Tasks that were told to end early."""
        self.replies: queue.Queue[SlotOutcome] = queue.Queue()
        self.n_actions = 0
        self._open: list[int] = []
        self._children: dict[int, list[int]] = {}

    def _token(self) -> int:
        return self._rng.randrange(250)

    def _answer(self, prompt: list[int], adapters: Adapters) -> list[int]:
        key = tuple(prompt), adapters
        if key not in self._answers:
            self._answers[key] = self._cold(prompt, adapters, LONGEST)
        return self._answers[key]

    def request(self, adapters: Adapters = ()) -> None:
        rng = self._rng
        self._make_place()
        stem = rng.choice(self._stems)
        prompt = stem[: rng.choice((len(stem), len(stem), max(1, len(stem) // 2)))] + [rng.randrange(2)]
        answer = self._answer(prompt, adapters)
        went = rng.choice((0, 0, rng.randrange(60)))
        prompt, answer = prompt + answer[:went], answer[went:]
        task_id = next(self._ids)
        n = rng.choice((1, rng.randrange(1, 20), rng.randrange(1, LONGEST)))
        fields: dict[str, Any] = {"identity": CacheIdentity(adapters=adapters), "n_predict": n}
        kind = rng.random()
        if kind < 0.06:  # moved keys are close to, not what the model gives
            gap = rng.randrange(len(prompt))
            prompt, answer = prompt[:gap] + prompt[gap + 1 + rng.randrange(9) :] + [7], []
            fields["n_cache_reuse"] = 4
        elif kind < 0.09:
            fields |= {"n_predict": 260, "n_keep": 3, "n_discard": 40}
        elif kind < 0.16:
            ids = [next(self._ids) for _ in range(rng.randrange(1, 3))]
            fields["children"] = tuple((child, GREEDY) for child in ids)
            self._note(ids, answer)
            self._children[task_id] = ids
        if rng.random() < 0.1:
            fields["cache_prompt"] = False
        self._note([task_id], answer)
        self._bench.submit(task_id, prompt, **fields)

    def _note(self, ids: list[int], answer: list[int]) -> None:
        self._open += ids
        self.expected |= dict.fromkeys(ids, answer)

    def _make_place(self) -> None:
        """Wait until some request has ended where many are open; tell some to end."""
        bench, rng = self._bench, self._rng
        most = rng.choice((1, N_OPEN, N_OPEN, N_OPEN))

        def ended(task_id: int) -> bool:
            return any(e.task_id == task_id and isinstance(e, (Finished, Failed)) for e in bench.events)

        while len(self._open) >= most:
            if rng.random() < 0.25:
                task_id = rng.choice(self._open)
                n = len(bench.of(task_id, Token))
                self.cut.add(task_id)
                if n and rng.random() < 0.5:
                    bench.engine.post(StopAt(task_id, rng.randrange(1, n + 1)))
                else:
                    self._cancel(task_id)
                    continue
            bench.wait(lambda: any(map(ended, self._open)), 15)
            self._open = [task_id for task_id in self._open if not ended(task_id)]
        if rng.random() < 0.08:
            self._act()

    def _cancel(self, task_id: int) -> None:
        """With its children, which begin with their parent only."""
        for each in (task_id, *self._children.get(task_id, ())):
            self._bench.engine.post(Cancel(each))
            self.cut.add(each)
            if each in self._open:
                self._open.remove(each)

    def _act(self) -> None:
        kind: SlotActionKind = self._rng.choice(("save", "save", "restore", "restore", "erase"))
        path = None if kind == "erase" else self._folder / str(self._rng.randrange(3))
        self._bench.engine.post(SlotAction(kind, self._rng.randrange(N_SLOTS), path, self.replies.put))
        self.n_actions += 1

    def end(self) -> None:
        self._bench.finish(*self._open)

    def check(self) -> int:
        """The tokens that were compared."""
        n_compared = 0
        for task_id, answer in self.expected.items():
            tokens = [event.token for event in self._bench.of(task_id, Token)]
            ends = self._bench.of(task_id, Finished)
            if task_id not in self.cut:
                assert tokens and len(ends) == 1, task_id
            known = len(answer)
            if ends and ends[0].shifted_after is not None:
                known = min(known, ends[0].shifted_after)
            n = min(known, len(tokens))
            assert tokens[:n] == answer[:n], f"task {task_id}"
            n_compared += n
        return n_compared


class Seen:
    """Which graphs were made, and how many prompts the passes had."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[BlockShape] = []
        self.passes: list[int] = []
        step, together = CompiledSteps._step, ForwardPass._ragged

        def make(steps: CompiledSteps, shape: BlockShape, *inputs: Any) -> Any:
            self.made.append(shape)
            return step(steps, shape, *inputs)

        def read(self_: Any, slots: Any, tokens: Any, adapters: Any, chunks: Any) -> Any:
            logits = together(self_, slots, tokens, adapters, chunks)
            self.passes.append(len(chunks))
            return logits

        patch.setattr(CompiledSteps, "_step", make)
        patch.setattr(ForwardPass, "_ragged", read)


@pytest.mark.parametrize("kv_unified", [False, True])
def test_each_request_gets_what_the_model_gives_alone(
    kv_unified: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine_adapters, "load_adapter", load_by_seed)
    reference = Adapted.__new__(Adapted)
    reference.module = tiny.llama()
    reference.loaded = LoadedAdapters(reference.module)
    first = adapter(reference.module, 1, rank=3)
    reference.loaded.add(first)
    bench = Bench(
        tiny.llama,
        n_slots=N_SLOTS,
        n_ctx=N_CTX_SLOT * N_SLOTS,
        n_ctx_slot=N_CTX_SLOT,
        kv_unified=kv_unified,
        n_batch=256,
        n_ubatch=256,
        cache_ram=1,
        context_shift=True,
    )
    seen = Seen(monkeypatch)
    churn = Churn(11, bench, reference.cold, tmp_path)
    try:
        for _ in range(N_REQUESTS * 2 // 3):
            churn.request()
        loaded: queue.Queue[Any] = queue.Queue()
        bench.engine.post(LoadAdapter("1", loaded.put))
        assert loaded.get(timeout=10).digest == first.digest
        for i in range(N_REQUESTS // 3):
            churn.request(((first.digest, 1.0),) if i % 3 == 0 else ())
        churn.end()
        for _ in range(churn.n_actions):
            churn.replies.get(timeout=10)
        assert churn.check() > 10 * N_REQUESTS
        assert seen.passes
        assert len({(shape.lo, shape.hi) for shape in seen.made}) > 5
        assert len(seen.made) == len(set(seen.made)), "a graph was made twice"
        assert any(event.n_past for task_id in churn.expected for event in bench.of(task_id, Started))
    finally:
        bench.close()
    assert bench.errors == []
