"""Samplers that shorten the list of candidates (or forbid some of it), one row's parameters a row."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxserver.sampling.candidates import Candidates, column, integers
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.random import ConditionalDraws, take_draws


class TopK:
    def __init__(self, params: Sequence[SamplingParams]) -> None:
        ks = [p.top_k for p in params]
        self._most = max(ks)
        self._limits = integers(ks) if min(ks) < self._most else None

    def __call__(self, candidates: Candidates) -> Candidates:
        best = candidates.best(self._most)
        return best if self._limits is None else best.drop(best.rank() < self._limits)


class TopNSigma:
    """Forbids logits more than n standard deviations below the best; the list keeps its length."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._n = column([p.top_n_sigma for p in params])

    def __call__(self, candidates: Candidates) -> Candidates:
        logits = candidates.logits
        finite = logits > -mx.inf
        count = mx.maximum(mx.sum(finite, axis=-1, keepdims=True), 1)
        mean = mx.sum(mx.where(finite, logits, 0), axis=-1, keepdims=True) / count
        deviations = mx.where(finite, mx.square(logits - mean), 0)
        sigma = mx.sqrt(mx.sum(deviations, axis=-1, keepdims=True) / count)
        threshold = mx.max(logits, axis=-1, keepdims=True) - self._n * sigma
        return candidates.with_logits(mx.where(logits < threshold, -mx.inf, logits))


class Typical:
    """Locally typical sampling (Meister et al. 2022): the list ends up by typicality, not by logit."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._p = column([p.typical_p for p in params])
        self._min_keep = integers([p.min_keep for p in params])

    def __call__(self, candidates: Candidates) -> Candidates:
        ranked = candidates.sort()
        probs = ranked.probs()
        surprise = -mx.log(probs)
        entropy = mx.sum(mx.where(probs > 0, probs * surprise, 0), axis=-1, keepdims=True)
        score = mx.abs(surprise - entropy)
        if ranked.keep is not None:
            score = mx.where(ranked.keep, mx.minimum(score, mx.finfo(mx.float32).max), mx.inf)
        order = mx.argsort(score, axis=-1)
        before = mx.cumsum(mx.take_along_axis(probs, order, axis=-1), axis=-1, inclusive=False)
        rank = ranked.rank()
        keep = (before <= self._p) | (rank < self._min_keep) | (rank == 0)
        return ranked.permute(order, sorted=False).drop(keep)


class TopP:
    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._p = column([p.top_p for p in params])
        self._min_keep = integers([p.min_keep for p in params])

    def __call__(self, candidates: Candidates) -> Candidates:
        ranked = candidates.sort()
        before = mx.cumsum(ranked.probs(), axis=-1, inclusive=False)
        rank = ranked.rank()
        return ranked.drop((before < self._p) | (rank < self._min_keep) | (rank == 0))


class MinP:
    """Keeps what is at least p times as likely as the best candidate.

    An unsorted list keeps its order, unless fewer than ``min_keep`` pass: then the best are kept, sorted.
    """

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        # The best candidate stays, also with p > 1.
        self._log_p = mx.minimum(mx.log(column([p.min_p for p in params])), 0)
        keeps = [p.min_keep for p in params]
        self._min_keep = integers(keeps) if any(keeps) else None

    def __call__(self, candidates: Candidates) -> Candidates:
        threshold = mx.max(candidates.logits, axis=-1, keepdims=True) + self._log_p
        if self._min_keep is None:
            return candidates.drop(candidates.logits >= threshold)
        too_few = mx.sum(candidates.logits >= threshold, axis=-1, keepdims=True) < self._min_keep
        rank = candidates.rank()
        ordered = candidates.permute(mx.where(too_few, candidates.order(), rank), candidates.sorted)
        return ordered.drop((ordered.logits >= threshold) | too_few & (rank < self._min_keep))


class Xtc:
    """Exclude top choices: sometimes drops every candidate above the threshold but the least likely."""

    def __init__(self, params: Sequence[SamplingParams], draws: list[ConditionalDraws]) -> None:
        self._probability = column([p.xtc_probability for p in params])
        self._threshold = column([p.xtc_threshold for p in params])
        self._min_keep = integers([p.min_keep for p in params])
        self._draws = draws

    def __call__(self, candidates: Candidates) -> Candidates:
        size = candidates.size()
        fires = take_draws(self._draws, size >= 2) <= self._probability
        order = candidates.order()
        above = mx.take_along_axis(candidates.probs(), order, axis=-1) >= self._threshold
        last = mx.maximum(mx.sum(above, axis=-1, keepdims=True) - 1, 0)
        cut = mx.where(fires & (size >= 2) & (size - last >= self._min_keep), last, 0)
        rank = candidates.rank()
        # Turned by ``cut``, so that the dropped head comes last.
        turned = mx.take_along_axis(order, (rank + cut) % candidates.width, axis=-1)
        shuffled = candidates.permute(mx.where(fires, turned, rank), candidates.sorted)
        return shuffled.drop(rank < candidates.width - cut)
