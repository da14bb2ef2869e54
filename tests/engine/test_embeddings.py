"""Embedding tasks in the engine: beside streams, in batches, with llama-server's limits and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.engine.embedder import normalized
from mlxserver.engine.embeddings import Embeddings
from mlxserver.engine.mailbox import Cancel
from mlxserver.engine.pace import Pace
from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.slot import Slot, SlotState
from mlxserver.engine.task import Failed, Finished, Started, Task, Vectors
from mlxserver.models.load import ModelSource, load_model
from tests.engine.bench import CONFIG, PROMPTS, Bench, oracle
from tests.models import encoder_files, tiny


def pooled(module: Any, prompt: Sequence[int], pooling: str) -> list[float]:
    hidden = np.array(module.model(mx.array([prompt])))[0]
    vector = {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[pooling]
    return list(vector / np.linalg.norm(vector))


def bench_of(pooling: str, **changes: Any) -> Bench:
    return Bench(tiny.llama, embedding=True, pooling=pooling, **changes)


@pytest.fixture
def mean() -> Iterator[Bench]:
    bench = bench_of("mean")
    yield bench
    bench.close()


def vectors(bench: Bench, task_id: int) -> tuple[list[float], ...]:
    bench.finish(task_id)
    (found,) = bench.of(task_id, Vectors)
    return found.vectors  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_prompts_in_one_batch_have_the_vectors_that_they_have_alone(pooling: str) -> None:
    module, bench = tiny.llama(), bench_of(pooling)
    for i in range(12):
        bench.submit(i, PROMPTS[i % 4], is_embedding=True)
    for i in range(12):
        (vector,) = vectors(bench, i)
        np.testing.assert_allclose(vector, pooled(module, PROMPTS[i % 4], pooling), atol=1e-5)
    bench.close()


def test_without_pooling_each_token_has_a_vector_and_none_is_normalised() -> None:
    bench = bench_of("none")
    bench.submit(0, PROMPTS[2], is_embedding=True)
    bench.submit(1, PROMPTS[1], is_embedding=True)
    for task_id, prompt in ((0, PROMPTS[2]), (1, PROMPTS[1])):
        wanted = np.array(tiny.llama().model(mx.array([prompt])))[0]
        np.testing.assert_allclose(vectors(bench, task_id), wanted, atol=1e-4)
    bench.close()


def test_beside_streams_neither_changes_the_other(mean: Bench) -> None:
    module = tiny.llama()
    mean.submit(0, PROMPTS[0], n_predict=40)
    mean.submit(1, PROMPTS[1], n_predict=40)
    for i in range(2, 12):
        mean.submit(i, PROMPTS[i % 4], is_embedding=True)
    assert mean.finish(0, 1) == [oracle(module, prompt, 40) for prompt in PROMPTS[:2]]
    for i in range(2, 12):
        np.testing.assert_allclose(vectors(mean, i)[0], pooled(module, PROMPTS[i % 4], "mean"), atol=1e-5)


def test_a_slot_keeps_what_it_held_for_completions(mean: Bench) -> None:
    prompt = list(range(60, 90))
    mean.submit(0, prompt, n_predict=4)
    (first,) = mean.finish(0)
    mean.submit(1, prompt, is_embedding=True, id_slot=mean.of(0, Started)[0].slot_id)
    vectors(mean, 1)
    mean.submit(2, prompt + first, n_predict=4)
    assert mean.finish(2) == [oracle(tiny.llama(), prompt + first, 4)]
    assert mean.of(2, Started)[0].n_past == len(prompt) + 3


def test_what_slots_and_counters_tell(mean: Bench) -> None:
    mean.submit(0, PROMPTS[2], is_embedding=True, settings={"a": 1})
    vectors(mean, 0)
    snapshot = mean.engine.snapshot()
    (slot,) = [slot for slot in snapshot.slots if slot.task_id == 0]
    assert (slot.is_processing, slot.n_prompt_tokens, slot.settings) == (False, len(PROMPTS[2]), {"a": 1})
    counters = snapshot.counters
    assert (counters.prompt_tokens, counters.predicted_tokens, counters.decodes) == (len(PROMPTS[2]), 0, 1)
    assert counters.prompt_seconds > 0 and counters.n_tokens_max == len(PROMPTS[2])
    assert mean.of(0, Started)[0].n_past == 0 and mean.of(0, Finished)[0].reason == "none"


@pytest.mark.parametrize("n_ubatch", [3, 7, 64])
def test_a_long_prompt_of_which_the_last_token_counts_goes_in_pieces(n_ubatch: int) -> None:
    bench = bench_of("last", n_ubatch=n_ubatch, n_batch=64)
    for i, prompt in enumerate(PROMPTS):
        bench.submit(i, prompt, is_embedding=True)
    for i, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(vectors(bench, i)[0], pooled(tiny.llama(), prompt, "last"), atol=1e-5)
    bench.close()


def failure(bench: Bench, task_id: int) -> tuple[str, str]:
    bench.finish(task_id)
    (failed,) = bench.of(task_id, Failed)
    return failed.type, failed.message


def test_prompts_that_are_too_long() -> None:
    bench = bench_of("mean", n_ubatch=16)
    bench.submit(0, range(17), is_embedding=True)
    assert failure(bench, 0) == (
        "server_error",
        "input (17 tokens) is too large to process. increase the physical batch size "
        "(current batch size: 16)",
    )
    bench.submit(1, [], is_embedding=True)
    assert failure(bench, 1) == ("invalid_request_error", "Input content cannot be empty")
    bench.close()
    bench = bench_of("mean", n_ubatch=64, n_ctx_slot=32)
    bench.submit(0, range(32), is_embedding=True)
    vectors(bench, 0)
    bench.submit(1, range(33), is_embedding=True)
    assert failure(bench, 1) == (
        "exceed_context_size_error",
        "input (33 tokens) is larger than the max context size (32 tokens). skipping",
    )
    assert bench.of(1, Failed)[0].fields == {"n_prompt_tokens": 33, "n_ctx": 32}
    bench.close()
    bench = bench_of("last", n_ubatch=8, n_ctx_slot=32)
    bench.submit(0, range(32), is_embedding=True)
    assert "request (32 tokens) exceeds the available context size (32 tokens)" in failure(bench, 0)[1]
    bench.close()


def test_a_cancelled_one_frees_its_slot(mean: Bench) -> None:
    for i in range(6):
        mean.submit(i, PROMPTS[i % 4], is_embedding=True)
    mean.engine.post(Cancel(5))
    mean.submit(6, PROMPTS[0], is_embedding=True)
    vectors(mean, 6)
    assert not any(slot.is_processing for slot in mean.engine.snapshot().slots)


def test_an_error_fails_the_batch_and_the_engine_goes_on(
    mean: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    mean.submit(1, PROMPTS[0], is_embedding=True, embd_normalize="x")
    assert failure(mean, 1) == ("server_error", "Compute error.")
    mean.submit(2, PROMPTS[0], is_embedding=True)
    np.testing.assert_allclose(vectors(mean, 2)[0], pooled(tiny.llama(), PROMPTS[0], "mean"), atol=1e-5)
    assert "a step failed" in caplog.text


def test_an_encoder_answers_embeddings_and_refuses_to_write(tmp_path: Path) -> None:
    model, _ = load_model(ModelSource(path=str(encoder_files.write_tiny(tmp_path / "m.gguf"))))
    bench = Bench(model.module, embedding=True, pooling="mean", has_logits=False)
    for i, prompt in enumerate([(2, 83, 84, 3), (2, 88, 3), (2,)]):
        bench.submit(i, prompt, is_embedding=True)
    assert all(len(vectors(bench, i)[0]) == encoder_files.HIDDEN for i in range(3))
    for task_id, prompt in ((3, [2, 3]), (4, [])):
        bench.submit(task_id, prompt)
        message = "the current context does not logits computation. skipping"
        assert failure(bench, task_id) == ("server_error", message)
    bench.close()


# ------------------------------------------------------------------ batches


def waiting(n: int, id: int, t_start: float = 0.0) -> Slot:
    slot = Slot(id, 512, state=SlotState.EMBEDDING, task=Task(id, tuple(range(n)), is_embedding=True))
    slot.task_id, slot.t_start = id, t_start
    return slot


def batches(slots: list[Slot], n_batch: int = 100, **changes: Any) -> list[list[int]]:
    pace = Pace()
    pace.ran(1.0, [PassShape(10**9, 10**9)], 0)  # prompts cost next to nothing: n_batch alone counts
    embeddings = Embeddings(replace(CONFIG, n_batch=n_batch, n_ubatch=n_batch, **changes), slots, pace)
    found = []
    while batch := embeddings.batch():
        found.append([embed.task_id for embed in batch])
    return found


def test_a_batch_is_bounded_with_its_padding() -> None:
    assert batches([waiting(40, 0), waiting(10, 1), waiting(5, 2)]) == [[0, 1], [2]]
    assert batches([waiting(10, 0), waiting(90, 1), waiting(5, 2)]) == [[0, 2], [1]]


def test_the_oldest_goes_first_however_long() -> None:
    assert batches([waiting(5, 0, t_start=2.0), waiting(100, 1, t_start=1.0)]) == [[1], [0]]


def test_without_continuous_batching_they_wait_for_the_streams() -> None:
    stream = Slot(0, 512, state=SlotState.GENERATING)
    assert batches([stream, waiting(5, 1)], cont_batching=False) == []
    assert batches([stream, waiting(5, 1)]) == [[1]]


# --------------------------------------------------------------------- norms


@pytest.mark.parametrize(
    ("norm", "wanted"),
    [
        (-1, [3.0, -4.0, 0.0]),
        (0, [24570.0, -32760.0, 0.0]),
        (1, [3 / 7, -4 / 7, 0.0]),
        (2, [0.6, -0.8, 0.0]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3), 0.0]),
    ],
)
def test_norms(norm: int, wanted: list[float]) -> None:
    np.testing.assert_allclose(normalized(np.array([3, -4, 0], np.float32), norm), wanted, rtol=1e-6)


@pytest.mark.parametrize("norm", [0, 1, 2, 7])
def test_the_zero_vector_stays(norm: int) -> None:
    assert normalized(np.zeros(3, np.float32), norm).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("norm", [-2, -7, 10**6])
def test_odd_norms_do_no_harm(norm: int) -> None:
    normalized(np.array([3, -4, 0], np.float32), norm)
