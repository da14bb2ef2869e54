"""The list of candidates that the samplers of a chain pass on, for several rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

_BLOCK = 64
_FLOAT_MIN = -3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Candidates:
    """R rows of up to K candidates.

    A candidate that left the list has a logit of -inf and a False in ``keep``; one that is merely
    forbidden has a logit of -inf and stays in the list. In a sorted list those that left come last.
    """

    logits: mx.array
    """(R, K) float32."""
    ids: mx.array | None = None
    """(R, K) token ids; None: the whole vocabulary in order."""
    keep: mx.array | None = None
    """(R, K) bool; None: all."""
    sorted: bool = False
    """By logit, descending."""

    @property
    def width(self) -> int:
        return int(self.logits.shape[-1])

    def size(self) -> mx.array:
        """(R, 1) int32: how long each row's list is."""
        if self.keep is None:
            return mx.full((self.logits.shape[0], 1), self.width, dtype=mx.int32)
        return mx.sum(self.keep, axis=-1, keepdims=True).astype(mx.int32)

    def probs(self) -> mx.array:
        """(R, K): the softmax over each row's list."""
        return mx.softmax(self.logits, axis=-1)

    def rank(self) -> mx.array:
        """(K,): positions in the list."""
        return mx.arange(self.width, dtype=mx.int32)

    def with_logits(self, logits: mx.array, sorted: bool | None = None) -> Candidates:
        return replace(self, logits=logits, sorted=self.sorted if sorted is None else sorted)

    def drop(self, keep: mx.array) -> Candidates:
        """Removes from the lists what ``keep`` (R, K) does not name."""
        logits = mx.where(keep, self.logits, -mx.inf)
        return replace(self, logits=logits, keep=keep if self.keep is None else self.keep & keep)

    def permute(self, order: mx.array, sorted: bool) -> Candidates:
        """``order`` (R, K') picks positions; a shorter K' cuts the list."""
        return Candidates(
            mx.take_along_axis(self.logits, order, axis=-1),
            order if self.ids is None else mx.take_along_axis(self.ids, order, axis=-1),
            None if self.keep is None else mx.take_along_axis(self.keep, order, axis=-1),
            sorted,
        )

    def order(self) -> mx.array:
        """(R, K): the positions by descending logit, those that left last."""
        if self.sorted:
            return mx.broadcast_to(self.rank(), self.logits.shape)
        if self.keep is None:
            return mx.argsort(-self.logits, axis=-1)
        return mx.argsort(-mx.where(self.keep, mx.maximum(self.logits, _FLOAT_MIN), -mx.inf), axis=-1)

    def sort(self) -> Candidates:
        return self if self.sorted else self.permute(self.order(), sorted=True)

    def best(self, k: int) -> Candidates:
        """The ``k`` best of every row, sorted."""
        if k >= self.width:
            return self.sort()
        if self.keep is None and not self.sorted:
            return self.permute(best_positions(self.logits, k), sorted=True)
        return self.permute(self.order()[:, :k], sorted=True)

    def tokens(self, index: mx.array) -> mx.array:
        """The ids at ``index`` (R, 1) as (R,) int32."""
        found = index if self.ids is None else mx.take_along_axis(self.ids, index, axis=-1)
        return found[:, 0].astype(mx.int32)


def best_positions(values: mx.array, k: int) -> mx.array:
    """Positions (R, k) of the ``k`` largest of each row of ``values`` (R, N), best first.

    The k largest values lie in the k blocks with the largest maxima, so only those are searched.
    """
    n = values.shape[-1]
    if 4 * k * _BLOCK > n:
        return _partitioned(values, k)
    padding = -n % _BLOCK
    if padding:
        # Forbidden tokens must still rank before the padding.
        values = mx.maximum(values, _FLOAT_MIN)
        values = mx.pad(values, [(0, 0), (0, padding)], constant_values=-mx.inf)
    blocks = values.reshape(values.shape[0], -1, _BLOCK)
    chosen = mx.sort(mx.argpartition(-blocks.max(axis=-1), k - 1, axis=-1)[:, :k], axis=-1)
    inside = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(values.shape[0], -1)
    found = _partitioned(inside, k)
    return mx.take_along_axis(chosen, found // _BLOCK, axis=-1) * _BLOCK + found % _BLOCK


def _partitioned(values: mx.array, k: int) -> mx.array:
    if k >= values.shape[-1]:
        return mx.argsort(-values, axis=-1)
    # Sorted positions first: a stable sort then leaves equal values in the order of their ids.
    found = mx.sort(mx.argpartition(-values, k - 1, axis=-1)[:, :k], axis=-1)
    order = mx.argsort(-mx.take_along_axis(values, found, axis=-1), axis=-1)
    return mx.take_along_axis(found, order, axis=-1)


def column(values: Sequence[float]) -> mx.array:
    """One number a row as (R, 1) float32."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def integers(values: Sequence[int]) -> mx.array:
    """One whole number a row as (R, 1) int32."""
    return mx.array(list(values), dtype=mx.int32)[:, None]
