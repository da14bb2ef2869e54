"""Temperature, fixed, zero or by entropy."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxserver.sampling.candidates import Candidates, column
from mlxserver.sampling.params import SamplingParams


class Temperature:
    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._temperature = column([p.temperature for p in params])

    def __call__(self, candidates: Candidates) -> Candidates:
        return candidates.with_logits(candidates.logits / self._temperature)


class ZeroTemperature:
    """Forbids all but the first of the best candidates; the list keeps its length."""

    def __call__(self, candidates: Candidates) -> Candidates:
        return candidates.with_logits(only_best(candidates))


class DynamicTemperature:
    """A temperature between T - range (not below 0) and T + range that grows with the entropy."""

    def __init__(self, params: Sequence[SamplingParams]) -> None:
        self._low = column([max(0.0, p.temperature - p.dynatemp_range) for p in params])
        self._high = column([p.temperature + p.dynatemp_range for p in params])
        self._exponent = column([p.dynatemp_exponent for p in params])

    def __call__(self, candidates: Candidates) -> Candidates:
        ranked = candidates.sort()
        probs = ranked.probs()
        entropy = -mx.sum(mx.where(probs > 0, probs * mx.log(probs), 0), axis=-1, keepdims=True)
        # A single candidate makes this 0/0, which is not above 0 below: it stays as it is.
        normalized = mx.maximum(entropy, 0) / mx.log(ranked.size().astype(mx.float32))
        temperature = self._low + (self._high - self._low) * mx.power(normalized, self._exponent)
        scaled = ranked.logits / temperature
        return ranked.with_logits(mx.where(temperature > 0, scaled, only_best(ranked)))


def only_best(candidates: Candidates) -> mx.array:
    """The logits with -inf everywhere but at each row's first maximum."""
    best = mx.argmax(candidates.logits, axis=-1, keepdims=True)
    return mx.where(candidates.rank() == best, candidates.logits, -mx.inf)
