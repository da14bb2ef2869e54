"""Greedy text equals llama-server's wherever the best two tokens are not a toss-up."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.prompts import N_PREDICT, PROMPTS, TARGET
from tests.e2e.server import Server

Rows = list[dict[str, Any]]

TOSS_UP = 1e-3
"""A gap of the two best log-probabilities that float rounding may turn over."""


@pytest.fixture(scope="module")
def recorded() -> Rows:
    rows: Rows = json.loads(TARGET.read_text(encoding="utf-8"))
    return rows


def first_difference(row: dict[str, Any], tokens: list[int]) -> int | None:
    """The step of a difference that rounding does not excuse."""
    if tokens == row["tokens"]:
        return None
    for step, (want, top) in enumerate(zip(row["tokens"], row["top"], strict=True)):
        if step >= len(tokens) or tokens[step] != want:
            return None if top[0][1] - top[1][1] <= TOSS_UP else step
    return len(row["tokens"])


def greedy_tokens(server: Server, prompt: str) -> list[int]:
    answer = server.post("/completion", prompt=prompt, n_predict=N_PREDICT, temperature=0, n_probs=1)
    return [step["id"] for step in answer["completion_probabilities"]]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("streams", [1, 4])
def test_greedy_text_equals_the_reference(server: Server, recorded: Rows, streams: int) -> None:
    assert [row["prompt"] for row in recorded] == list(PROMPTS)
    with ThreadPoolExecutor(streams) as pool:
        answers = list(pool.map(lambda row: greedy_tokens(server, row["prompt"]), recorded))
    for row, tokens in zip(recorded, answers, strict=True):
        step = first_difference(row, tokens)
        assert step is None, f"{row['prompt']!r}, token {step}: expected {row['tokens']}, got {tokens}"


def test_the_comparison_can_fail() -> None:
    row = {"tokens": [5, 6], "top": [[[5, -0.1], [7, -0.1004]], [[6, -0.1], [8, -2.0]]]}
    assert first_difference(row, [5, 6]) is None
    assert first_difference(row, [7, 1]) is None
    assert first_difference(row, [5, 8]) == 1
    assert first_difference(row, [5]) == 1
    assert first_difference(row, [5, 6, 9]) == 2
