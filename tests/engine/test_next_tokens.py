"""Slots go on with their newest token, whatever the order that they are asked for in."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlxserver.engine.next_tokens import NextTokens


def of(*tokens: int) -> mx.array:
    return mx.array(tokens, dtype=mx.int32)


def test_the_same_slots_get_their_tokens_as_they_are() -> None:
    tokens, last = NextTokens(), of(7, 8)
    tokens.keep([2, 0], last)
    assert tokens.take([2, 0]) is last


@pytest.mark.parametrize(("order", "wanted"), [([0, 2], [8, 7]), ([0], [8]), ([2, 1, 0], [7, 5, 8])])
def test_others_come_and_go(order: list[int], wanted: list[int]) -> None:
    tokens = NextTokens()
    tokens.keep([2, 0], of(7, 8))
    tokens.put(1, of(5))
    assert tokens.take(order).tolist() == wanted


def test_a_slot_s_own_token_is_newer_and_taken_once() -> None:
    tokens = NextTokens()
    tokens.keep([0, 1], of(7, 8))
    tokens.put(1, of(5))
    assert tokens.take([0, 1]).tolist() == [7, 5]
    tokens.keep([0, 1], of(3, 4))
    assert tokens.take([1, 0]).tolist() == [4, 3]
