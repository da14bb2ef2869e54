"""Prompts that wait together are read in one pass, which gives what each would give by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.batch_check import prompts_agree
from mlxserver.engine.plan import Chunk
from mlxserver.engine.prompt_passes import prompt_passes
from mlxserver.engine.runner import Runner
from mlxserver.engine.task import Failed, Started
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from tests.engine.bench import Bench, oracle
from tests.models import tiny

PLAIN = ("llama", "qwen3", "mixtral", "deepseek_v3")
PASS = 32
"""Tokens that a pass costs."""
PROMPTS = [tuple((11 * slot + 5 * i) % tiny.VOCAB for i in range(n)) for slot, n in enumerate((20, 33, 27))]


def chunk(slot: int, n: int, end: int = 0) -> Chunk:
    return Chunk(slot, slot, (0,) * n, end or n)


def slots_of(passes: Sequence[Sequence[Chunk]]) -> list[list[int]]:
    return [[chunk.slot for chunk in group] for group in passes]


# ------------------------------------------------------------- which share


def test_short_prompts_share_a_pass() -> None:
    assert slots_of(prompt_passes([chunk(i, 20 + i) for i in range(4)], 512, PASS)) == [[0, 1, 2, 3]]


def test_a_slot_is_in_a_pass_once() -> None:
    chunks = [chunk(0, 10), chunk(0, 10, 20), chunk(1, 10)]
    assert slots_of(prompt_passes(chunks, 512, PASS)) == [[0], [0, 1]]


@pytest.mark.parametrize(("short", "together"), [(100 - PASS + 3, True), (100 - PASS - 4, False)])
def test_padding_may_cost_as_much_as_the_pass_that_is_saved(short: int, together: bool) -> None:
    passes = prompt_passes([chunk(0, 100), chunk(1, short)], 512, PASS)
    assert slots_of(passes) == ([[0, 1]] if together else [[0], [1]])


def test_a_short_row_does_not_read_a_long_ones_columns() -> None:
    assert slots_of(prompt_passes([chunk(0, 64, 4000), chunk(1, 64)], 512, PASS)) == [[0], [1]]
    assert slots_of(prompt_passes([chunk(0, 64, 4000), chunk(1, 64, 3900)], 512, PASS)) == [[0, 1]]


def test_a_pass_has_no_more_than_a_batch_with_its_padding() -> None:
    assert slots_of(prompt_passes([chunk(i, 60) for i in range(4)], 180, PASS)) == [[0, 1, 2], [3]]
    assert slots_of(prompt_passes([chunk(i, 60) for i in range(2)], 0, PASS)) == [[0], [1]]


# ------------------------------------------------------------------ arrays


KINDS = [(kind, "f32", "f32") for kind in PLAIN] + [("llama", "f16", "bf16"), ("qwen3", "q8_0", "q4_0")]


@pytest.mark.parametrize(("kind", "key_type", "value_type"), KINDS)
def test_state_is_that_of_prompts_read_alone(kind: str, key_type: str, value_type: str) -> None:
    """Rows in any order, unequal starts and lengths, rows between them that are not touched."""
    module = tiny.ALL[kind](**({"head_dim": 32} if kind == "qwen3" else {}))
    alone, together = (
        SlotStates(cache_maker(module), 5, KV_TYPES[key_type], KV_TYPES[value_type]) for _ in range(2)
    )
    slots, starts, sizes = (3, 0, 4), (7, 0, 70), (13, 20, 1)
    tokens = [[(3 * slot + 7 * i) % tiny.VOCAB for i in range(100)] for slot in range(5)]
    for states in (alone, together):
        for slot, start in [*zip(slots, starts, strict=True), (1, 9)]:
            if start:
                module(mx.array([tokens[slot][:start]]), cache=states.prompt_chunk(slot, start))
    logits = []
    for slot, start, n in zip(slots, starts, sizes, strict=True):
        part = mx.array([tokens[slot][start : start + n]])
        logits.append(module(part, cache=alone.prompt_chunk(slot, n)))
    padded = [
        (tokens[slot][s : s + n] + [0] * 20)[:20] for slot, s, n in zip(slots, starts, sizes, strict=True)
    ]
    found = module(mx.array(padded), cache=together.prompt_chunks(slots, sizes, 0))
    for row, n in enumerate(sizes):
        assert mx.allclose(found[row, :n], logits[row][0], atol=1e-3, rtol=1e-3).item()
    for slot in (*slots, 1):
        n = alone.length(slot)
        assert together.length(slot) == n
        spans = [states.read_span(slot, 0, n).layers for states in (together, alone)]
        for ours, theirs in zip(*spans, strict=True):
            for a, b in zip((*ours[0], *ours[1]), (*theirs[0], *theirs[1]), strict=True):
                assert a.shape == b.shape
                if "q" not in key_type:
                    assert mx.allclose(a, b, atol=2e-2 if value_type == "bf16" else 1e-4).item()


def test_a_window_hides_columns_in_a_shared_pass_too() -> None:
    module = tiny.mistral_sliding()
    alone, together = (
        SlotStates(cache_maker(module, swa_full=True), 2, KV_TYPES["f32"], KV_TYPES["f32"]) for _ in range(2)
    )
    expected = [module(mx.array([PROMPTS[i]]), cache=alone.prompt_chunk(i, len(PROMPTS[i]))) for i in (0, 1)]
    padded = [list(PROMPTS[0]) + [0] * 13, list(PROMPTS[1])]
    found = module(mx.array(padded), cache=together.prompt_chunks((0, 1), (20, 33), 0))
    assert mx.allclose(found[0, :20], expected[0][0], atol=1e-4).item()
    assert mx.allclose(found[1], expected[1][0], atol=1e-4).item()


@pytest.mark.parametrize("kind", tiny.ALL)
def test_the_check_at_load(kind: str) -> None:
    module = tiny.ALL[kind]()
    assert prompts_agree(module, cache_maker(module)) == (kind in PLAIN)


# ------------------------------------------------------------------ engine


class Watched:
    """The numbers of prompts of the passes that a runner has made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.passes: list[int] = []
        together = Runner._prompts_together

        def noted(runner: Runner, step: Any, chunks: list[Chunk]) -> bool:
            self.passes.append(len(chunks))
            return together(runner, step, chunks)

        patch.setattr(Runner, "_prompts_together", noted)


def all_at_once(bench: Bench, n: int, **fields: Any) -> list[list[int]]:
    """The answers to ``PROMPTS``, of which the engine hears at once."""
    with bench.held():
        for task_id, prompt in enumerate(PROMPTS):
            bench.submit(task_id, prompt, n_predict=n, **fields)
    return bench.finish(*range(len(PROMPTS)))


def warm(bench: Bench) -> None:
    """Prompts are timed, so that a step has as many as there is time for."""
    assert bench.engine._scheduler is not None
    bench.engine._scheduler.pace.pass_tokens = PASS
    bench.submit(99, (1, 2, 3) * 9, n_predict=3, cache_prompt=False)
    bench.finish(99)


@pytest.mark.parametrize("kind", PLAIN)
def test_answers_are_those_of_prompts_read_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.ALL[kind]()
    watched = Watched(monkeypatch)
    bench = Bench(module, n_batch=256, n_ubatch=256)
    try:
        warm(bench)
        assert all_at_once(bench, 12) == [oracle(module, prompt, 12) for prompt in PROMPTS]
    finally:
        bench.close()
    assert watched.passes == [len(PROMPTS)]


def test_prompts_go_on_behind_what_is_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    watched = Watched(monkeypatch)
    bench = Bench(module, n_batch=256, n_ubatch=256)
    try:
        for task_id in (0, 2):
            bench.submit(10 + task_id, PROMPTS[task_id][: 9 + task_id], n_predict=1, id_slot=1 + task_id)
        bench.finish(10, 12)
        watched.passes.clear()
        assert all_at_once(bench, 12, cache_prompt=True) == [oracle(module, each, 12) for each in PROMPTS]
        assert [bench.of(task_id, Started)[0].n_past for task_id in range(3)] == [9, 0, 11]
    finally:
        bench.close()
    assert watched.passes == [len(PROMPTS)]


def test_only_the_prompt_that_cannot_be_read_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny.llama()
    bench = Bench(module, n_batch=256, n_ubatch=256)
    warm(bench)
    bad = PROMPTS[1][5]
    inner = type(module).__call__

    def call(self: Any, tokens: mx.array, *args: Any, **fields: Any) -> Any:
        if tokens.shape[1] > 1 and bad in sum(tokens.tolist(), []):
            raise RuntimeError("a bad token")
        return inner(self, tokens, *args, **fields)

    monkeypatch.setattr(type(module), "__call__", call)
    watched = Watched(monkeypatch)
    try:
        assert bad not in PROMPTS[0] + PROMPTS[2]
        all_at_once(bench, 12)
        assert watched.passes == [len(PROMPTS)]
        monkeypatch.undo()
        assert [bool(bench.of(task_id, Failed)) for task_id in range(3)] == [False, True, False]
        tokens = bench.finish(0, 2)
        assert tokens == [oracle(module, PROMPTS[i], 12) for i in (0, 2)]
        bench.submit(5, PROMPTS[1], n_predict=12)
        assert bench.finish(5) == [oracle(module, PROMPTS[1], 12)]
    finally:
        bench.close()
