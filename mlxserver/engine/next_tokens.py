"""What each slot that decodes goes on with, kept on the device."""

from __future__ import annotations

import mlx.core as mx


class NextTokens:
    """Steps of the same slots hand their tokens on as they are, without any array being built."""

    def __init__(self) -> None:
        self._order: list[int] = []
        self._tokens = mx.array([], dtype=mx.int32)
        """(B,) of the last step's slots, in ``_order``."""
        self._own: dict[int, mx.array] = {}
        """(1,) arrays of slots, newer than those."""

    def put(self, slot: int, token: mx.array) -> None:
        """``token`` (1,) is what a slot goes on with."""
        self._own[slot] = token

    def keep(self, order: list[int], tokens: mx.array) -> None:
        """``tokens`` (B,) are what the slots of a step go on with; other slots never ask again."""
        self._order, self._tokens = order, tokens

    def take(self, order: list[int]) -> mx.array:
        """(B,) the token that each slot goes on with."""
        if order == self._order and not any(slot in self._own for slot in order):
            return self._tokens
        parts = [self._take(slot) for slot in order]
        return mx.concatenate(parts) if len(parts) > 1 else parts[0]

    def _take(self, slot: int) -> mx.array:
        if slot in self._own:
            return self._own.pop(slot)
        index = self._order.index(slot)
        return self._tokens[index : index + 1]
