"""Probabilities with adapters are llama-server's, one set of adapters at a time and all in one batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.lora.load import load_adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.lora.rows import RowAdapters
from mlxserver.models.model import Model
from tests.models.lora.recorded import FILES, FOLDER, PROMPTS, SETS, TARGET

pytestmark = pytest.mark.real_model

LARGEST_DIFFERENCE = 1e-3
Row = dict[str, Any]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Model:
    return load_model(ModelSource(path=str(smollm2)), dtype="float32")[0]


@pytest.fixture(scope="module")
def loaded(model: Model) -> Iterator[tuple[LoadedAdapters, list[str]]]:
    adapters = [load_adapter(str(FOLDER / file), model) for file in FILES]
    loaded = LoadedAdapters(model.module)
    for one in adapters:
        loaded.add(one)
    yield loaded, [one.digest for one in adapters]


@pytest.fixture(scope="module")
def recorded() -> list[Row]:
    rows: list[Row] = json.loads(TARGET.read_text("utf-8"))
    assert [tuple(row["scales"]) for row in rows] == [scales for scales in SETS for _ in PROMPTS]
    return rows


def adapters_of(row: Row, digests: list[str]) -> RowAdapters:
    return tuple(zip(digests, row["scales"], strict=True))


def tokens_of(row: Row) -> list[int]:
    """All that was seen before the last recorded step."""
    return [*row["prompt"], *row["tokens"][:-1]]


def largest_difference(row: Row, logits: mx.array) -> float:
    """``logits`` (L, n_vocab) of the row's tokens. Of the probabilities of the recorded best tokens."""
    log_probs = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    largest = 0.0
    for step, top in enumerate(row["top"]):
        own = log_probs[len(row["prompt"]) - 1 + step]
        for token, log_prob in top:
            largest = max(largest, abs(float(np.exp(own[token]) - np.exp(log_prob))))
    return largest


def test_probabilities_of_each_set_of_adapters(
    model: Model, loaded: tuple[LoadedAdapters, list[str]], recorded: list[Row]
) -> None:
    adapters, digests = loaded
    found = []
    for row in recorded[:: len(PROMPTS)]:
        adapters.use([adapters_of(row, digests)])
        found.append(largest_difference(row, model.module(mx.array([tokens_of(row)]))[0]))
    print(f"largest difference of a probability: {max(found):.2e}")
    assert max(found) < LARGEST_DIFFERENCE


@pytest.mark.parametrize("prompt", range(len(PROMPTS)))
def test_probabilities_of_all_sets_in_one_batch(
    prompt: int, model: Model, loaded: tuple[LoadedAdapters, list[str]], recorded: list[Row]
) -> None:
    adapters, digests = loaded
    rows = recorded[prompt :: len(PROMPTS)]
    adapters.use([adapters_of(row, digests) for row in rows])
    logits = model.module(mx.array([tokens_of(row) for row in rows]))
    found = [largest_difference(row, logits[index]) for index, row in enumerate(rows)]
    print(f"largest difference of a probability: {max(found):.2e}")
    assert max(found) < LARGEST_DIFFERENCE


def test_the_comparison_can_fail(
    model: Model, loaded: tuple[LoadedAdapters, list[str]], recorded: list[Row]
) -> None:
    """The adapters change far more than the comparison allows."""
    adapters, digests = loaded
    for row in recorded[len(PROMPTS) :: len(PROMPTS)]:
        adapters.use([tuple((digest, 0.9 * scale) for digest, scale in adapters_of(row, digests))])
        assert largest_difference(row, model.module(mx.array([tokens_of(row)]))[0]) > LARGEST_DIFFERENCE
