"""Mirostat 1 and 2 (Basu et al. 2021): truncation that steers towards a surprise of tau bits a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxserver.sampling.candidates import Candidates, column
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.random import ConditionalDraws, take_draws
from mlxserver.sampling.selection import Selected, chosen, pick

_M = 100
_LOG_2 = 0.6931471805599453
_INT_MAX = 2.0**31


class MirostatState:
    CHANGES = ("mu",)

    def __init__(self, tau: float, draws: ConditionalDraws) -> None:
        self.mu = mx.array(2 * tau, dtype=mx.float32)
        """Twice the target surprise at first; scalar."""
        self.draws = draws


class Mirostat:
    """The selecting end of a chain; ``truncate`` is one of the two rules below."""

    def __init__(
        self,
        params: Sequence[SamplingParams],
        states: Sequence[MirostatState],
        truncate: Callable[[Candidates, mx.array], Candidates],
    ) -> None:
        self._tau = column([p.mirostat_tau for p in params])
        self._eta = column([p.mirostat_eta for p in params])
        self._states = states
        self._truncate = truncate

    def __call__(self, candidates: Candidates) -> Selected:
        mu = mx.stack([s.mu for s in self._states])[:, None]
        kept = self._truncate(candidates.sort(), mu)
        probs = kept.probs()
        index = pick(probs, take_draws([s.draws for s in self._states], kept.size() >= 2))
        surprise = -mx.log2(mx.take_along_axis(probs, index, axis=-1))
        mu = mu - self._eta * (surprise - self._tau)
        for row, state in enumerate(self._states):
            state.mu = mu[row, 0]
        return chosen(kept, index)


def by_zipf(n_vocab: int) -> Callable[[Candidates, mx.array], Candidates]:
    """Version 1: a top-k whose k follows from the exponent of Zipf's law, estimated on the best 100."""

    def truncate(candidates: Candidates, mu: mx.array) -> Candidates:
        s = _exponent(candidates)
        epsilon = s - 1
        k = mx.power(epsilon * mx.power(2.0, mu) / (1 - mx.power(float(n_vocab), -epsilon)), 1 / s)
        # What does not fit a C int (also NaN) becomes the most negative one there, and so 1.
        k = mx.where((k >= 1) & (k < _INT_MAX), mx.floor(k), 1)
        return candidates.drop(candidates.rank() < k)

    return truncate


def _exponent(candidates: Candidates) -> mx.array:
    logits = candidates.logits[:, :_M]
    # Only pairs within the list count; the difference of logits is the logarithm of the ratio.
    pairs = mx.arange(1, logits.shape[-1]) < candidates.size()
    i = mx.arange(logits.shape[-1] - 1, dtype=mx.float32)
    t = mx.where(pairs, mx.log((i + 2) / (i + 1)), 0)
    b = mx.where(pairs, logits[:, :-1] - logits[:, 1:], 0)
    return mx.sum(t * b, axis=-1, keepdims=True) / mx.sum(t * t, axis=-1, keepdims=True)


def by_surprise(candidates: Candidates, mu: mx.array) -> Candidates:
    """Version 2: drops what is more surprising than mu."""
    surprise = -mx.log(candidates.probs()) / _LOG_2
    return candidates.drop((surprise <= mu) | (candidates.rank() == 0))
