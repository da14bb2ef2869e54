"""Samplers that choose the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxserver.sampling.candidates import Candidates, column
from mlxserver.sampling.random import Draws

_FLAT = 1024
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Selected:
    """``tokens`` (R,) int32; ``index`` (R, 1) is each token's position in its row's list."""

    tokens: mx.array
    index: mx.array
    candidates: Candidates


class Greedy:
    def __call__(self, candidates: Candidates) -> Selected:
        return chosen(candidates, mx.argmax(candidates.logits, axis=-1, keepdims=True))


class Dist:
    """Samples from the softmax of the list, one draw a token."""

    def __init__(self, draws: Sequence[Draws]) -> None:
        self._draws = draws

    def __call__(self, candidates: Candidates) -> Selected:
        uniform = column([d.next() for d in self._draws])
        return chosen(candidates, pick(candidates.probs(), uniform))


def chosen(candidates: Candidates, index: mx.array) -> Selected:
    return Selected(candidates.tokens(index), index, candidates)


def pick(weights: mx.array, uniform: mx.array) -> mx.array:
    """The first position whose cumulated weight reaches ``uniform`` of the total.

    ``weights`` (R, K), ``uniform`` (R, 1) in [0, 1) → (R, 1) int32. Long lists are cumulated in two
    levels: 32-bit sums over a whole vocabulary would lose the unlikely tokens.
    """
    if weights.shape[-1] <= _FLAT:
        return _first_reaching(weights, mx.cumsum(weights, axis=-1), uniform)
    weights = mx.pad(weights, [(0, 0), (0, -weights.shape[-1] % _BLOCK)])
    blocks = weights.reshape(weights.shape[0], -1, _BLOCK)
    sums = mx.sum(blocks, axis=-1)
    total = mx.cumsum(sums, axis=-1)
    block = _first_reaching(sums, total, uniform)
    inside = mx.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    own = mx.take_along_axis(sums, block, axis=-1)
    rest = uniform * total[:, -1:] - (mx.take_along_axis(total, block, axis=-1) - own)
    fraction = mx.clip(rest / own, 0, 1)
    return block * _BLOCK + _first_reaching(inside, mx.cumsum(inside, axis=-1), fraction)


def _first_reaching(weights: mx.array, cumulated: mx.array, fraction: mx.array) -> mx.array:
    # Positions without weight are passed over, and the target is measured against the largest sum:
    # rounding can then neither choose a forbidden token nor point past the end.
    reached = mx.where(weights > 0, cumulated, -1)
    target = fraction * mx.max(reached, axis=-1, keepdims=True)
    return mx.argmax(reached >= target, axis=-1, keepdims=True).astype(mx.int32)
