"""A step waits for the device once: where its tokens are read. One more would be paid for by every stream."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.engine.mailbox import ENGINE_THREAD
from mlxserver.engine.runner import Runner
from mlxserver.engine.task import Token
from mlxserver.sampling.params import SamplingParams
from tests.engine.bench import GREEDY, Bench
from tests.models import tiny

N = 12


class Spy:
    """Counts what the engine thread waits with, from the moment ``watching`` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        self.steps = 0
        self.watching = False
        for name in ("eval", "synchronize"):
            patch.setattr(mx, name, self._noting(name, getattr(mx, name)))
        for name in ("item", "tolist", "__array__", "__bool__", "__int__", "__float__", "__index__"):
            if hasattr(mx.array, name):
                patch.setattr(mx.array, name, self._noting(name, getattr(mx.array, name)))
        for name in ("array", "asarray"):
            patch.setattr(np, name, self._of_numpy(name, getattr(np, name)))
        launch = Runner.launch

        def counted(runner: Runner, plan: Any) -> Any:
            self.steps += self.watching
            return launch(runner, plan)

        patch.setattr(Runner, "launch", counted)

    def note(self, name: str) -> None:
        if self.watching and threading.current_thread().name == ENGINE_THREAD:
            self.seen[name] += 1

    def _noting(self, name: str, function: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.note(name)
            return function(*args, **kwargs)

        return noting

    def _of_numpy(self, name: str, function: Any) -> Any:
        def noting(given: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(given, mx.array):
                self.note(f"numpy.{name}")
            return function(given, *args, **kwargs)

        return noting


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spy]:
    yield Spy(monkeypatch)


def watched(bench: Bench, spy: Spy, sampling: SamplingParams, n_long: int = 0) -> None:
    """Four streams of unequal prompts; only steps in which all decode are counted.

    ``n_long``: tokens of a prompt that arrives then; the steps in which it is read are counted.
    """
    launch = Runner.launch

    def from_then_on(runner: Runner, plan: Any) -> Any:
        is_counted = bool(plan.n_prompt) == bool(n_long) and not plan.joins and not plan.moves
        spy.watching = is_counted and len(plan.decodes) == 4
        return launch(runner, plan)

    Runner.launch = from_then_on  # type: ignore[method-assign]
    try:
        for i in range(4):
            bench.submit(i, range(3 + i, 9 + 2 * i), n_predict=120 if n_long else 40, sampling=sampling)
        if n_long:
            bench.wait(lambda: len(bench.of(3, Token)) > 2)
            bench.submit(4, [i % 200 for i in range(n_long)], n_predict=2)
        bench.finish(*range(4))
    finally:
        Runner.launch = launch  # type: ignore[method-assign]
        bench.close()
    assert bench.errors == []


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3_next"])
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=1)], ids=["greedy", "default chain"])
def test_a_step_waits_once(kind: str, sampling: SamplingParams, spy: Spy) -> None:
    watched(Bench(tiny.ALL[kind]), spy, sampling)
    assert spy.steps >= 20
    assert spy.seen["eval"] <= spy.steps + 1
    assert spy.seen["tolist"] <= spy.steps + 1
    assert set(spy.seen) <= {"eval", "tolist"}


def test_a_prompt_beside_streams_adds_none(spy: Spy) -> None:
    watched(Bench(tiny.llama, n_slots=5, n_batch=8, n_ubatch=8), spy, GREEDY, n_long=200)
    assert spy.steps >= 15
    assert spy.seen["eval"] <= spy.steps + 1
    assert spy.seen["tolist"] <= spy.steps + 1
    assert set(spy.seen) <= {"eval", "tolist"}


def test_the_spy_sees_one_that_is_added(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Runner.launch

    def waiting(runner: Runner, plan: Any) -> Any:
        step = launch(runner, plan)
        if step.sampled:
            step.sampled[0][1].tokens[0].item()
        return step

    monkeypatch.setattr(Runner, "launch", waiting)
    watched(Bench(tiny.llama), spy, GREEDY)
    assert spy.seen["item"] >= spy.steps - 1
