"""Adaptive-p: prefers tokens near a target probability, and moves the target by what was chosen."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxserver.sampling.candidates import Candidates, column
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.random import ConditionalDraws, take_draws
from mlxserver.sampling.selection import Selected, chosen, pick

_WIDTH = 0.3
_PEAK = 5.0
_SHARPNESS = 10.0
_MAX_DECAY = 0.99


def _decay(params: SamplingParams) -> float:
    return min(max(params.adaptive_decay, 0.0), _MAX_DECAY)


class AdaptiveState:
    """A decaying sum of the chosen tokens' probabilities, and of its weights (scalars)."""

    CHANGES = ("total", "weight")

    def __init__(self, params: SamplingParams, draws: ConditionalDraws) -> None:
        memory = 1 / (1 - _decay(params))
        self.total = mx.array(params.adaptive_target * memory, dtype=mx.float32)
        self.weight = mx.array(memory, dtype=mx.float32)
        self.draws = draws


class AdaptiveP:
    """The selecting end of a chain. A negative target samples the list as it is."""

    def __init__(self, params: Sequence[SamplingParams], states: Sequence[AdaptiveState]) -> None:
        self._target = column([p.adaptive_target for p in params])
        self._decay = column([_decay(p) for p in params])
        self._states = states

    def __call__(self, candidates: Candidates) -> Selected:
        original = candidates.probs()
        total = mx.stack([s.total for s in self._states])[:, None]
        weight = mx.stack([s.weight for s in self._states])[:, None]
        target = mx.clip(2 * mx.clip(self._target, 0, 1) - total / weight, 0, 1)
        distance = mx.abs(original - target) / _WIDTH
        near = _PEAK - _SHARPNESS * distance * distance / (1 + distance)
        adapted = mx.where((candidates.logits > -mx.inf) & (self._target >= 0), near, candidates.logits)
        listed = candidates.with_logits(adapted)
        draws = take_draws([s.draws for s in self._states], candidates.size() >= 2)
        index = pick(listed.probs(), draws)
        self._remember(total, weight, mx.take_along_axis(original, index, axis=-1))
        return chosen(listed, index)

    def _remember(self, total: mx.array, weight: mx.array, probability: mx.array) -> None:
        total = probability + self._decay * total
        weight = 1 + self._decay * weight
        for row, state in enumerate(self._states):
            state.total, state.weight = total[row, 0], weight[row, 0]
