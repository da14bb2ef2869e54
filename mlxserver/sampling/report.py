"""Probability reports: what is computed with the step, and read after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import best_positions
from mlxserver.sampling.probs import LOWEST, Candidate, TokenProbs
from mlxserver.sampling.selection import Selected


class Report(Protocol):
    def arrays(self) -> list[mx.array]: ...

    def row(self, i: int, token: int) -> TokenProbs: ...


class LogProbs:
    """Over the raw logits of the whole vocabulary, before any sampler."""

    def __init__(self, logits: mx.array, tokens: mx.array, n_probs: Sequence[int]) -> None:
        """``logits`` (R, n_vocab), ``tokens`` (R,) int32."""
        logits = logits.astype(mx.float32)
        self._n_probs = n_probs
        total = mx.logsumexp(logits, axis=-1, keepdims=True)
        self._ids = best_positions(logits, min(max(n_probs), logits.shape[-1]))
        self._top = mx.take_along_axis(logits, self._ids, axis=-1) - total
        self._chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1) - total

    def arrays(self) -> list[mx.array]:
        return [self._ids, self._top, self._chosen]

    def row(self, i: int, token: int) -> TokenProbs:
        ids, top, chosen = self._values
        best = zip(ids[i][: self._n_probs[i]], top[i], strict=False)
        return TokenProbs(
            Candidate(token, _logarithm(chosen[i][0])), tuple(Candidate(t, _logarithm(v)) for t, v in best)
        )

    @cached_property
    def _values(self) -> tuple[Any, ...]:
        return tuple(array.tolist() for array in self.arrays())


def _logarithm(value: float) -> float:
    """The value, unless its probability is 0 in 32 bits."""
    return value if value > -math.inf and np.exp(np.float32(value)) > 0 else LOWEST


class PostSamplingProbs:
    """Over the list that the chain left, in its order if that is sorted; probabilities of 0 end it."""

    def __init__(self, selected: Selected, rows: Sequence[int], n_probs: Sequence[int]) -> None:
        """``rows`` are the places in ``selected`` that want a report."""
        places = mx.array(list(rows))
        candidates = selected.candidates
        probs = candidates.probs()[places]
        self._n_probs = n_probs
        n = min(max(n_probs), candidates.width)
        in_order = mx.broadcast_to(mx.arange(n), (len(rows), n))
        best = in_order if candidates.sorted else best_positions(probs, n)
        ids = candidates.ids
        self._ids = best if ids is None else mx.take_along_axis(ids[places], best, axis=-1)
        self._top = mx.take_along_axis(probs, best, axis=-1)
        self._chosen = mx.take_along_axis(probs, selected.index[places], axis=-1)

    def arrays(self) -> list[mx.array]:
        return [self._ids, self._top, self._chosen]

    def row(self, i: int, token: int) -> TokenProbs:
        ids, top, chosen = self._values
        listed = []
        for t, p in zip(ids[i][: self._n_probs[i]], top[i], strict=False):
            if p == 0:
                break
            listed.append(Candidate(t, p))
        return TokenProbs(Candidate(token, chosen[i][0]), tuple(listed))

    @cached_property
    def _values(self) -> tuple[Any, ...]:
        return tuple(array.tolist() for array in self.arrays())


class Certain:
    """A chain that left no choice: the token has the probability 1 and is the only candidate."""

    def arrays(self) -> list[mx.array]:
        return []

    def row(self, i: int, token: int) -> TokenProbs:
        only = Candidate(token, 1.0)
        return TokenProbs(only, (only,))
