"""Fixed additions to logits."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.params import SamplingParams


class LogitBias:
    """Always the first of a chain: it sees the whole vocabulary."""

    def __init__(self, params: Sequence[SamplingParams], n_vocab: int) -> None:
        biases = np.zeros((len(params), n_vocab), dtype=np.float32)
        for row, p in enumerate(params):
            for token, bias in p.logit_bias:
                if 0 <= token < n_vocab:
                    biases[row, token] += bias
        self._biases = mx.array(biases)

    def __call__(self, candidates: Candidates) -> Candidates:
        return candidates.with_logits(candidates.logits + self._biases)
