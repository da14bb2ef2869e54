"""The engine thread on tiny models: what a task gives does not depend on what runs beside it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.mailbox import Cancel, StopAt
from mlxserver.engine.runner import Runner
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Failed, Finished, Started, Token
from mlxserver.sampling.params import SamplingParams
from tests.engine.bench import GREEDY, PROMPTS, Bench, oracle
from tests.models import tiny


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tiny.llama)
    yield bench
    bench.close()


@pytest.mark.parametrize(
    "kind",
    ["llama", "gemma3", "mistral_sliding", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"],
)
def test_batch_of_four_equals_alone_for_every_cache_kind(kind: str) -> None:
    module = getattr(tiny, kind)()
    want = [oracle(module, prompt, 20) for prompt in PROMPTS]
    bench = Bench(getattr(tiny, kind))
    try:
        for i, prompt in enumerate(PROMPTS):
            bench.submit(i, prompt, n_predict=20)
        assert bench.finish(0, 1, 2, 3) == want
        for i, prompt in enumerate(PROMPTS):  # again: on what the slots still hold
            bench.submit(10 + i, prompt, n_predict=20)
            assert bench.finish(10 + i) == [want[i]]
    finally:
        bench.close()


def test_more_tasks_than_slots_all_finish_with_their_own_text(bench: Bench) -> None:
    module = tiny.llama()
    prompts = [[(7 * i + j) % 250 for j in range(3 + i % 5)] for i in range(13)]
    for i, prompt in enumerate(prompts):
        bench.submit(i, prompt, n_predict=5 + i)
    got = bench.finish(*range(13))
    assert got == [oracle(module, prompt, 5 + i) for i, prompt in enumerate(prompts)]


def test_prefix_of_a_slot_is_reused_without_changing_the_text(bench: Bench) -> None:
    prompt = list(range(60, 100))
    bench.submit(0, prompt, n_predict=8)
    (first,) = bench.finish(0)
    longer = prompt + first + [3, 4]
    bench.submit(1, longer, n_predict=8)
    (second,) = bench.finish(1)
    assert bench.of(1, Started)[0].n_past == len(prompt) + 7
    assert second == oracle(tiny.llama(), longer, 8)


def test_same_seed_same_text_alone_and_in_a_full_batch(bench: Bench) -> None:
    params = SamplingParams(seed=7, temperature=1.0)
    bench.submit(0, PROMPTS[0], sampling=params, n_predict=20, cache_prompt=False)
    (alone,) = bench.finish(0)
    for i in range(1, 5):
        sampling = params if i == 3 else SamplingParams(seed=i, temperature=1.2, repeat_penalty=1.3)
        bench.submit(i, PROMPTS[0] if i == 3 else PROMPTS[1], sampling=sampling, n_predict=20)
    assert bench.finish(1, 2, 3, 4)[2] == alone
    bench.submit(9, PROMPTS[0], sampling=replace(params, seed=8), n_predict=20)
    assert bench.finish(9)[0] != alone


def test_rows_that_need_the_host_run_beside_rows_that_do_not(bench: Bench) -> None:
    want = oracle(tiny.llama(), PROMPTS[2], 20)
    dry = SamplingParams(temperature=0.0, dry_multiplier=2.0, dry_allowed_length=1)
    bench.submit(0, PROMPTS[2], n_predict=20)
    bench.submit(1, PROMPTS[2], n_predict=20, sampling=dry)
    assert bench.finish(0)[0] == want
    assert len(bench.finish(1)[0]) == 20


def test_children_sample_for_themselves_from_one_prompt(bench: Bench) -> None:
    children = ((1, SamplingParams(seed=5, temperature=1.5)), (2, GREEDY))
    bench.submit(0, PROMPTS[2], n_predict=12, children=children)
    want = oracle(tiny.llama(), PROMPTS[2], 12)
    got = bench.finish(0, 1, 2)
    assert got[0] == got[2] == want
    assert got[1] != want


def test_probabilities_come_with_the_tokens(bench: Bench) -> None:
    bench.submit(0, PROMPTS[0], n_predict=3, sampling=replace(GREEDY, n_probs=4))
    bench.submit(1, PROMPTS[1], n_predict=3)
    bench.finish(0, 1)
    for token in bench.of(0, Token):
        assert len(token.probs.top) == 4
        assert token.probs.top[0].token == token.token == token.probs.chosen.token
        assert token.probs.chosen.value == pytest.approx(token.probs.top[0].value)
    assert all(token.probs is None for token in bench.of(1, Token))


def test_end_of_generation_frees_the_slot() -> None:
    stream = oracle(tiny.llama(), PROMPTS[0], 10)
    bench = Bench(tiny.llama, frozenset({stream[4]}))
    bench.submit(0, PROMPTS[0])
    end = stream.index(stream[4])
    assert bench.finish(0)[0] == stream[: end + 1]
    assert bench.of(0, Finished)[0].reason == "eos"
    assert not any(slot.is_processing for slot in bench.engine.snapshot().slots)
    bench.close()


@pytest.mark.parametrize("phase", ["queued", "prompt", "decode"])
def test_cancel_frees_the_slot_within_a_step(phase: str) -> None:
    bench = Bench(tiny.llama, n_slots=1, n_ctx_slot=8192, n_batch=32)
    bench.submit(0, [1, 2, 3] if phase == "decode" else [i % 200 for i in range(7000)])
    if phase == "queued":
        bench.submit(1, [4, 5], n_predict=2)
    victim = 1 if phase == "queued" else 0
    bench.wait(lambda: any(isinstance(e, Token if phase == "decode" else Started) for e in bench.events))
    bench.engine.post(Cancel(victim))
    deadline = time.monotonic() + 10
    while victim in {s.task_id for s in bench.engine.snapshot().slots if s.is_processing} or (
        phase == "queued" and bench.engine.snapshot().deferred
    ):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    bench.engine.post(Cancel(0))
    bench.submit(5, PROMPTS[0], n_predict=4)
    assert bench.finish(5)[0] == oracle(tiny.llama(), PROMPTS[0], 4)
    assert bench.of(victim, Finished) == []
    bench.close()


def test_stop_keeps_what_the_text_used(bench: Bench) -> None:
    bench.submit(0, PROMPTS[0])
    bench.wait(lambda: sum(isinstance(e, Token) for e in bench.events) >= 5)
    bench.engine.post(StopAt(0, 3))
    bench.finish(0)
    finished = bench.of(0, Finished)[0]
    assert (finished.reason, finished.n_tokens) == ("stop", len(PROMPTS[0]) + 2)


def test_a_failing_row_takes_only_its_own_request_down(bench: Bench) -> None:
    bad = replace(GREEDY, repeat_penalty=float("nan"))
    bench.submit(0, PROMPTS[0], n_predict=10)
    bench.submit(1, PROMPTS[1], n_predict=10, sampling=bad)
    bench.finish(0, 1)
    failed = bench.of(1, Failed)[0]
    assert failed.type == "invalid_request_error"
    assert failed.message.startswith("Failed to initialize samplers: ")
    assert [e.token for e in bench.of(0, Token)] == oracle(tiny.llama(), PROMPTS[0], 10)


def test_an_error_in_a_step_fails_its_tasks_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    module = tiny.llama()
    broken = {"now": False}

    class Fragile:
        layers, parameters, named_modules = module.layers, module.parameters, module.named_modules

        def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
            if broken["now"]:
                raise RuntimeError("no memory")
            return module(*args, **kwargs)

    bench = Bench(lambda: Fragile())
    bench.submit(0, PROMPTS[0], n_predict=200)
    bench.wait(lambda: any(isinstance(e, Token) for e in bench.events))
    broken["now"] = True
    bench.finish(0)
    broken["now"] = False
    assert (bench.of(0, Failed)[0].type, bench.of(0, Failed)[0].message) == ("server_error", "Compute error.")
    bench.submit(1, PROMPTS[0], n_predict=6)
    assert bench.finish(1)[0] == oracle(module, PROMPTS[0], 6)
    bench.close()


def test_a_model_that_cannot_batch_decodes_its_slots_one_by_one() -> None:
    module = tiny.build(
        "gpt2",
        n_ctx=512,
        n_embd=32,
        n_head=4,
        n_layer=2,
        n_positions=512,
        layer_norm_epsilon=1e-5,
        vocab_size=256,
    )
    want = [oracle(module, prompt, 10) for prompt in PROMPTS]
    bench = Bench(lambda: module)
    for i, prompt in enumerate(PROMPTS):
        bench.submit(i, prompt, n_predict=10)
    assert bench.finish(0, 1, 2, 3) == want
    bench.close()


def test_load_errors_are_reported_not_raised() -> None:
    def load() -> Any:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        Bench(load)


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_an_empty_prompt_ends_at_once(
    bench: Bench, cache_prompt: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench.submit(0, PROMPTS[0], n_predict=300)
    bench.submit(1, (), cache_prompt=cache_prompt, children=((2, GREEDY),))
    bench.finish(1, 2)
    assert [bench.of(task_id, Finished)[0].reason for task_id in (1, 2)] == ["none"] * 2
    assert bench.finish(0)[0] == oracle(tiny.llama(), PROMPTS[0], 300)
    assert caplog.text == ""


def test_a_process_that_ran_an_engine_ends_well() -> None:
    """A stream that outlives its thread aborts the process, about every other time."""
    script = "from tests.engine.bench import *; b = Bench(tiny.llama); b.submit(0, [1, 2]); b.close()"
    root = Path(__file__).parents[2]
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")


def test_the_pulse_tells_what_the_engine_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str | None] = {}

    def note(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def method(self: Any, *arguments: Any) -> Any:
            mark = bench.engine.pulse.mark
            seen[name] = mark.phase if mark else None
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, method)

    bench = Bench(tiny.llama)
    for owner, name in ((Scheduler, "plan"), (Runner, "launch"), (Runner, "collect"), (Scheduler, "submit")):
        note(owner, name)
    bench.submit(0, PROMPTS[0], n_predict=4)
    bench.finish(0)
    assert seen == {"plan": "plan", "launch": "launch", "collect": "collect", "submit": "reading messages"}
    deadline = time.monotonic() + 30
    while bench.engine.pulse.mark is not None:  # it rests once there is nothing to do
        assert time.monotonic() < deadline
        time.sleep(0.01)
    bench.close()
    assert bench.engine.pulse.mark is None
