"""Numbers added to the logits of some tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.params import SamplingParams


class Additions:
    """What to add to which token of which row; several for one token add up."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._tokens: list[int] = []
        self._values: list[float] = []

    def add(self, row: int, token: int, value: float) -> None:
        self._rows.append(row)
        self._tokens.append(token)
        self._values.append(value)

    def apply(self, candidates: Candidates, n_vocab: int) -> Candidates:
        """The list counts as unsorted afterwards."""
        logits = candidates.logits
        if candidates.ids is None:
            logits = self._scatter(logits)
        elif self._rows:
            table = self._scatter(mx.zeros((logits.shape[0], n_vocab)))
            logits = logits + mx.take_along_axis(table, candidates.ids, axis=-1)
        return candidates.with_logits(logits, sorted=False)

    def _scatter(self, table: mx.array) -> mx.array:
        if not self._rows:
            return table
        return table.at[mx.array(self._rows), mx.array(self._tokens)].add(mx.array(self._values))


class LogitBias:
    """Always the first of a chain: it sees the whole vocabulary."""

    def __init__(self, params: Sequence[SamplingParams], n_vocab: int) -> None:
        table = np.zeros((len(params), n_vocab), np.float32)
        for row, p in enumerate(params):
            known = [(token, bias) for token, bias in p.logit_bias if 0 <= token < n_vocab]
            if known:
                tokens, biases = zip(*known, strict=True)
                np.add.at(table[row], list(tokens), np.array(biases, np.float32))
        self._table = mx.array(table)
        """(B, n_vocab)."""

    def __call__(self, candidates: Candidates) -> Candidates:
        return candidates.with_logits(candidates.logits + self._table, sorted=False)
