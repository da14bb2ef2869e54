"""Reasoning ends when its budget is used up, when it is told to, or by itself."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from mlxserver.sampling.params import ReasoningBudget, SamplingParams
from mlxserver.sampling.reasoning_budget import BudgetState
from mlxserver.sampling.sampler import Sampler
from tests.sampling.byte_tokens import ByteTokens

START, END_A, END_B, MESSAGE = 1, 2, 3, 4
BUDGET = ReasoningBudget((START,), ((END_A, END_B),), (MESSAGE, END_A, END_B), tokens=2)


def state(budget: ReasoningBudget = BUDGET, *tokens: int) -> BudgetState:
    made = BudgetState(budget, ByteTokens().piece)
    for token in tokens:
        made.accept(token)
    return made


def forced(budget: BudgetState) -> list[int]:
    """The tokens that are forced now, one after the other."""
    found = []
    while budget.forced_token >= 0:
        found.append(budget.forced_token)
        budget.accept(budget.forced_token)
    return found


def test_nothing_is_forced_before_the_budget_is_used_up() -> None:
    assert not state(BUDGET, 9, 9, 9).is_thinking
    counting = state(BUDGET, START, 9)
    assert counting.is_thinking and counting.forced_token == -1


def test_the_message_and_the_end_are_forced_then() -> None:
    budget = state(BUDGET, START, 9, 9)
    assert forced(budget) == [MESSAGE, END_A, END_B]
    assert not budget.is_thinking and budget.ended_by == (END_A, END_B)


def test_a_prompt_may_have_opened_the_reasoning() -> None:
    assert forced(state(replace(BUDGET, prefill=(9, START, 9)), 9)) == [MESSAGE, END_A, END_B]
    assert not state(replace(BUDGET, prefill=(START, END_A, END_B))).is_thinking


def test_no_budget_at_all_ends_it_at_once() -> None:
    assert forced(state(replace(BUDGET, tokens=0), START)) == [MESSAGE, END_A, END_B]


def test_it_may_end_by_itself_and_begin_again() -> None:
    budget = state(BUDGET, START, END_A, END_B)
    assert not budget.is_thinking and budget.ended_by == (END_A, END_B)
    for token in (START, 9, 9):
        budget.accept(token)
    assert forced(budget) == [MESSAGE, END_A, END_B]


def test_without_bound_it_ends_only_when_told() -> None:
    budget = state(replace(BUDGET, tokens=-1), START, *([9] * 50))
    assert budget.forced_token == -1
    assert budget.end() and not budget.end()
    assert forced(budget) == [MESSAGE, END_A, END_B]


@pytest.mark.parametrize("tokens", [(), (9,), (START, END_A, END_B)])
def test_what_is_no_reasoning_cannot_be_ended(tokens: tuple[int, ...]) -> None:
    assert not state(BUDGET, *tokens).end()


def test_a_character_is_finished_first() -> None:
    budget = state(BUDGET, START, 9, 0xC3)
    assert budget.forced_token == -1
    budget.accept(ord("a"))
    assert budget.forced_token == MESSAGE


def test_the_sampler_gives_the_forced_tokens() -> None:
    vocabulary = ByteTokens()
    sampler = Sampler(vocabulary.n_vocab, vocabulary.eog_ids, vocabulary)
    sampler.begin(0, SamplingParams(temperature=0, reasoning_budget=BUDGET), [START])
    sampler.begin(1, SamplingParams(temperature=0), [START])
    likely = mx.zeros((2, vocabulary.n_vocab))
    likely[:, 9] = 1
    start = mx.zeros((2, vocabulary.n_vocab))
    start[:, START] = 1
    tokens = [sampler.sample(logits, [0, 1]).tokens.tolist() for logits in (start, *([likely] * 6))]
    assert [row for row, _ in tokens] == [START, 9, 9, MESSAGE, END_A, END_B, 9]
    assert [row for _, row in tokens] == [START, *([9] * 6)]


def test_reasoning_is_ended_from_outside() -> None:
    vocabulary = ByteTokens()
    sampler = Sampler(vocabulary.n_vocab, vocabulary.eog_ids, vocabulary)
    endless = replace(BUDGET, tokens=-1, prefill=(START,))
    sampler.begin(0, SamplingParams(temperature=0, reasoning_budget=endless), [START])
    likely = mx.zeros((1, vocabulary.n_vocab))
    likely[:, 9] = 1
    assert sampler.sample(likely, [0]).tokens.tolist() == [9]
    sampler.end_reasoning(0)
    assert [sampler.sample(likely, [0]).tokens.item() for _ in range(4)] == [MESSAGE, END_A, END_B, 9]
