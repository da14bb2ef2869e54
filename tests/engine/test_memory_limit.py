"""A bound of memory: what does not fit is refused by itself, and the bound holds at every moment."""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.mailbox import SlotAction, SlotOutcome
from mlxserver.engine.memory import StepMemory
from mlxserver.engine.memory_probe import memory_costs
from mlxserver.engine.plan import Chunk, Decode
from mlxserver.engine.runner import Runner
from mlxserver.engine.task import Failed, Finished
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.caches import cache_maker
from mlxserver.models.errors import ModelError
from mlxserver.models.ragged import fit_for_ragged_passes
from tests.engine.bench import Bench, oracle
from tests.models import tiny
from tests.models.lora.adapters import as_model

N_LAYERS = 8
TOKEN = N_LAYERS * 2 * 2 * (tiny.HIDDEN // 4) * 4
"""Bytes of a token's state."""
N_SLOTS, N_PROMPT, N_PREDICT = 8, 1000, 12
SIZES = {
    "n_slots": N_SLOTS,
    "n_ctx": N_SLOTS * 2048,
    "n_ctx_slot": 2048,
    "n_batch": 128,
    "n_ubatch": 128,
    "cache_ram": 1,
}
WAVE = N_SLOTS * (N_PROMPT + N_PREDICT) * TOKEN


def model() -> Any:
    return tiny.llama(num_hidden_layers=N_LAYERS)


def prompt_of(i: int, n: int = N_PROMPT) -> list[int]:
    return [(i * 31 + j * 7 + j * j * (i + 1)) % 250 for j in range(n)]


@contextmanager
def bench_with(nbytes: int, make: Any = model, **changes: Any) -> Iterator[Bench]:
    """``nbytes``: beyond what is there once the model is."""
    module = make()
    gc.collect()
    mx.synchronize()
    limit = mx.get_active_memory() + nbytes
    bench = Bench(module, **{**SIZES, **changes}, memory_limit=limit)
    try:
        yield bench
    finally:
        bench.close()
    assert bench.errors == []


def budget_of(bench: Bench) -> Any:
    assert bench.engine._scheduler is not None
    states: Any = bench.engine._scheduler._states
    return states.budget


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most bytes that were active meanwhile, sampled and by MLX's own count."""
    most: list[int] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.is_set():
            most.append(mx.get_active_memory())
            time.sleep(0.001)

    mx.reset_peak_memory()
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        is_over.set()
        thread.join()
        most.append(mx.get_peak_memory())


def fill_trie(bench: Bench) -> None:
    """Several slots' worth of stored prompts."""
    for i in range(100, 112):
        bench.submit(i, prompt_of(i, 300), n_predict=2, id_slot=N_SLOTS - 1)
        bench.finish(i)
    assert bench.engine.snapshot().cache.nbytes > 0.6 * 2**20


def split(bench: Bench, task_ids: Sequence[int]) -> tuple[list[int], list[Failed]]:
    """(tasks with an answer, failures)."""
    good = [i for i in task_ids if bench.of(i, Finished)]
    return good, [failed for i in task_ids for failed in bench.of(i, Failed)]


def test_about_half_of_the_slots_fit_and_the_others_are_refused() -> None:
    with bench_with(WAVE // 2 + 2**20) as bench:
        limit = budget_of(bench).limit
        fill_trie(bench)
        with watched() as most:
            for i in range(N_SLOTS):
                bench.submit(i, prompt_of(i), n_predict=N_PREDICT)
            answers = bench.finish(*range(N_SLOTS))
        good, failed = split(bench, range(N_SLOTS))
        assert max(most) <= limit
        assert 2 <= len(good) <= 6
        assert len(good) + len(failed) == N_SLOTS
        module = model()
        for i in good:
            assert answers[i] == oracle(module, prompt_of(i), N_PREDICT)
        for each in failed:
            assert each.type == "server_error"
            assert each.message.startswith("out of memory: ")
            assert f"of {limit / 2**20:.1f} MiB are free" in each.message
        for i in range(20, 23):  # one after the other everybody is served, in whatever slot
            bench.submit(i, prompt_of(i), n_predict=4)
            assert bench.finish(i)[0] == oracle(module, prompt_of(i), 4)


def test_stored_prompts_give_room_to_slots_first() -> None:
    with bench_with(WAVE // 4 + 2**20) as bench:
        fill_trie(bench)
        before = bench.engine.snapshot().cache
        for i in range(2):
            bench.submit(i, prompt_of(i), n_predict=4)
        bench.finish(0, 1)
        assert split(bench, [0, 1])[1] == []
        after = bench.engine.snapshot().cache
        assert after.evictions > before.evictions


def test_what_idle_slots_hold_gives_room() -> None:
    """One long prompt, and afterwards several short ones at a time, in slots that had no row."""
    long = 1800
    with bench_with(3 * long * TOKEN, cache_ram=0) as bench:
        bench.submit(0, prompt_of(0, long), n_predict=4, id_slot=7)
        bench.finish(0)
        for i in range(1, 6):
            bench.submit(i, prompt_of(i, 300), n_predict=4, id_slot=i)
        answers = bench.finish(*range(1, 6))
        assert split(bench, range(6))[1] == []
        assert answers == [oracle(model(), prompt_of(i, 300), 4) for i in range(1, 6)]


def test_smaller_chunks_are_taken_where_a_whole_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = ForwardPass._sequence

    def evaluate(self: ForwardPass, chunk: Any, tokens: Any) -> Any:
        sizes.append(len(chunk.tokens))  # the end of the prompt may be evaluated with its last token
        return original(self, chunk, tokens)

    n = 1500
    with bench_with(2**40, n_slots=1, n_ubatch=512, n_batch=512, cache_ram=0) as bench:
        costs = budget_of(bench).costs
    monkeypatch.setattr(ForwardPass, "_sequence", evaluate)
    room = (n + 200) * (costs.kv + costs.layer_kv) + costs.chunk(40, n)
    with bench_with(room, n_slots=1, n_ubatch=512, n_batch=512, cache_ram=0) as bench:
        with watched() as most:
            bench.submit(0, prompt_of(0, n), n_predict=4)
            (tokens,) = bench.finish(0)
        assert max(most) <= budget_of(bench).limit
    assert tokens == oracle(model(), prompt_of(0, n), 4)
    assert sum(sizes) >= n - 1
    assert 16 <= min(sizes[:-5]) < 128


def wide() -> Any:
    """Logits are most of what a step takes."""
    return tiny.llama(vocab_size=40_000)


def test_a_prompt_s_end_with_its_last_token_makes_logits_of_all_its_tokens() -> None:
    with bench_with(2**40, wide, n_slots=1, cache_ram=0) as bench:
        costs = budget_of(bench).costs
    with bench_with(2 * costs.least(), wide, n_slots=1, cache_ram=0) as bench:
        with watched() as most:
            bench.submit(0, prompt_of(0, 33), n_predict=4)
            (tokens,) = bench.finish(0)
        assert max(most) <= budget_of(bench).limit
    assert tokens == oracle(wide(), prompt_of(0, 33), 4)


def test_many_slots_begin_with_room_for_one() -> None:
    """What is measured at the start takes no room for all of them."""
    with bench_with(2**40, wide, n_slots=1, cache_ram=0) as bench:
        least = budget_of(bench).costs.least()
    with bench_with(2 * least, wide, n_slots=64, cache_ram=0) as bench:
        bench.submit(0, prompt_of(0, 100), n_predict=4)
        assert bench.finish(0)[0] == oracle(wide(), prompt_of(0, 100), 4)


@pytest.mark.parametrize("name", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize(("n_prompts", "n_rows"), [(2, 0), (5, 0), (5, 2)])
def test_a_pass_of_several_slots_takes_no_more_than_is_asked_for(
    name: str, n_prompts: int, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of each of them are there at the same time, as the model reads them."""
    module = tiny.llama(head_dim=64, num_attention_heads=8, num_key_value_heads=8)
    n, new, kv_type = 600, 4, KV_TYPES[name]
    fit_for_ragged_passes(module)
    states = SlotStates(cache_maker(module), n_prompts + n_rows, kv_type, kv_type)
    for slot in range(n_prompts + n_rows):
        module(mx.zeros((1, n), mx.int32), cache=states.prompt_chunk(slot, n, n_expected=n + 64))
        mx.eval(states.arrays())
    one = SlotStates(cache_maker(module), 1, kv_type, kv_type)
    states.budget.costs = memory_costs(as_model(module), one, tiny.VOCAB)
    asked: list[int] = []
    states.budget.limit = 2**40
    monkeypatch.setattr(states.budget, "lacking", lambda nbytes: asked.append(nbytes) or 0)
    chunks = [Chunk(slot, slot, (7,) * new, n + new) for slot in range(n_prompts)]
    rows = [Decode(n_prompts + i, n_prompts + i) for i in range(n_rows)]
    assert StepMemory(states).fit_together(chunks, rows)
    order = states.arrange([row.slot for row in rows])
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    caches = states.ragged(order, [(chunk.slot, new) for chunk in chunks], n_read=n_rows or None)
    logits = module(mx.zeros((n_rows + n_prompts * new, 1), mx.int32), cache=caches)
    mx.eval(states.arrays(), *([logits] if rows else []))
    mx.synchronize()
    assert mx.get_peak_memory() - before <= asked[0]


def test_a_slot_that_outgrows_the_bound_fails_alone() -> None:
    n_predict = 400
    with bench_with(1000 * 2 * TOKEN, n_slots=2, cache_ram=0) as bench:
        bench.submit(0, prompt_of(0, 20), n_predict=n_predict)
        bench.submit(1, prompt_of(1, 500), n_predict=1400)
        with watched() as most:
            answers = bench.finish(0, 1)
        assert max(most) <= budget_of(bench).limit
        good, failed = split(bench, [0, 1])
        assert good == [0] and [each.task_id for each in failed] == [1]
        assert failed[0].message.startswith("out of memory: ")
        assert len(answers[0]) == n_predict


@pytest.mark.parametrize(
    "kind", ["gemma3", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3", "mistral_sliding"]
)
def test_the_bound_holds_for_every_kind_of_state(kind: str) -> None:
    make = getattr(tiny, kind)
    sizes = {"n_slots": 4, "n_ubatch": 64, "n_batch": 64, "cache_ram": 0}
    with bench_with(2**40, make, **sizes) as bench:
        costs = budget_of(bench).costs
    prompts = [prompt_of(i, 200) for i in range(4)]
    alone = [oracle(make(), prompt, 5) for prompt in prompts]
    one = 2 * costs.slot(400) + 400 * (costs.kv + costs.layer_kv) + costs.chunk(16, 200) + costs.step(4, 210)
    with bench_with(3 * one, make, **sizes) as bench:
        with watched() as most:
            for i, prompt in enumerate(prompts):
                bench.submit(i, prompt, n_predict=5)
            answers = bench.finish(*range(4))
        assert max(most) <= budget_of(bench).limit
        good, failed = split(bench, range(4))
        assert good and len(good) + len(failed) == 4
        assert [answers[i] for i in good] == [alone[i] for i in good]
        assert all(each.message.startswith("out of memory: ") for each in failed)


def test_prompts_for_embeddings_that_do_not_fit_fail_alone() -> None:
    with bench_with(
        2 * 2**20, tiny.llama, embedding=True, pooling="mean", n_ubatch=512, n_batch=512
    ) as bench:
        for i, n in enumerate((20, 500, 30)):
            bench.submit(i, prompt_of(i, n), is_embedding=True)
        with watched() as most:
            bench.finish(0, 1, 2)
        assert max(most) <= budget_of(bench).limit
        good, failed = split(bench, range(3))
        assert good == [0, 2]
        assert [each.message.split(" needs ")[0] for each in failed] == ["out of memory: reading 500 tokens"]


def test_a_slot_file_is_not_restored_where_it_does_not_fit(tmp_path: Path) -> None:
    def act(bench: Bench, kind: Any, slot: int) -> SlotOutcome:
        replies: queue.SimpleQueue[SlotOutcome] = queue.SimpleQueue()
        bench.engine.post(SlotAction(kind, slot, tmp_path / "state", replies.put))
        return replies.get(timeout=60)

    with bench_with(2**40) as bench:
        bench.submit(0, prompt_of(0), n_predict=4, id_slot=7)
        bench.finish(0)
        assert act(bench, "save", 7).error == ""
    with bench_with(2**20 + 2**19) as bench:
        bench.submit(0, prompt_of(1, 40), n_predict=4, id_slot=7)
        bench.finish(0)
        assert act(bench, "restore", 6).error.startswith("out of memory: ")
        bench.submit(1, prompt_of(1, 40), n_predict=4, id_slot=6)
        assert bench.finish(1)[0] == oracle(model(), prompt_of(1, 40), 4)


def test_a_failed_allocation_is_tried_again_without_what_is_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original, errors = Runner._evaluate, [RuntimeError("[metal::malloc] Resource limit (1) exceeded.")]

    def evaluate(self: Runner, step: Any, chunk: Any) -> None:
        original(self, step, chunk)  # the slot counts as longer by then
        if errors:
            raise errors.pop()

    bench = Bench(model, **SIZES)
    fill_trie(bench)
    monkeypatch.setattr(Runner, "_evaluate", evaluate)
    bench.submit(0, prompt_of(0), n_predict=4)
    assert bench.finish(0)[0] == oracle(model(), prompt_of(0), 4)
    assert "an allocation failed" in caplog.text
    assert bench.engine.snapshot().cache.evictions > 0
    errors += [MemoryError(), MemoryError()]
    bench.submit(1, prompt_of(1), n_predict=4)
    bench.submit(2, prompt_of(2, 10), n_predict=4)
    bench.finish(1, 2)
    assert [each.message for each in split(bench, [1, 2])[1]] == ["out of memory"]
    bench.close()
    assert bench.errors == []


def test_a_model_that_does_not_fit_is_refused_or_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError, match=r"needs \d+ MiB for a short prompt, --memory-limit is 0 MiB"):
        Bench(model, **SIZES, memory_limit=1000)
    with caplog.at_level(logging.WARNING):
        bench = Bench(model, **SIZES, memory_limit=1000, memory_limit_is_given=False)
    assert "memory is not watched" in caplog.text
    bench.submit(0, prompt_of(0, 50), n_predict=4)
    assert len(bench.finish(0)[0]) == 4
    bench.close()


def test_without_a_bound_nothing_is_asked() -> None:
    bench = Bench(model, **SIZES)
    assert budget_of(bench).limit is None
    assert budget_of(bench).lacking(2**60) == 0
    bench.close()
