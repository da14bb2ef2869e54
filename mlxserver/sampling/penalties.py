"""Repetition, frequency and presence penalties over a window of the last tokens."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import Candidates, column
from mlxserver.sampling.params import SamplingParams


class Window:
    """The last ``size`` tokens of one row and how often each occurs, on the device.

    The newest token may still be unknown to the host.
    """

    CHANGES = ("_n", "ring", "counts")

    def __init__(self, n_vocab: int, size: int, prompt: Sequence[int]) -> None:
        last = np.asarray(prompt[-size:], dtype=np.int32)
        ring = np.zeros(size, dtype=np.int32)
        ring[: len(last)] = last
        self._n = len(last)
        self.ring = mx.array(ring)
        """(size,): token ids in no order; places not yet used hold token 0."""
        self.counts = mx.array(np.bincount(last, minlength=n_vocab).astype(np.float32))
        """(n_vocab,)."""

    def push(self, token: mx.array) -> None:
        """``token`` is a scalar."""
        size = self.ring.shape[0]
        place = self._n % size
        if self._n >= size:
            self.counts = self.counts.at[self.ring[place]].add(-1)
        self.counts = self.counts.at[token].add(1)
        self.ring[place] = token
        self._n += 1

    def state(self) -> list[mx.array]:
        return [self.ring, self.counts]


class Penalties:
    def __init__(self, params: Sequence[SamplingParams], windows: Sequence[Window]) -> None:
        self._repeat = column([p.repeat_penalty for p in params])
        self._frequency = column([p.frequency_penalty for p in params])
        self._presence = column([p.presence_penalty for p in params])
        self._windows = windows

    def __call__(self, candidates: Candidates) -> Candidates:
        if candidates.ids is not None:
            penalized = self._penalize(candidates.logits, candidates.ids)
            return candidates.with_logits(penalized, sorted=False)
        seen = self._seen()
        logits = mx.take_along_axis(candidates.logits, seen, axis=-1)
        # A token that fills several places is written several times, with the same value.
        penalized = mx.put_along_axis(candidates.logits, seen, self._penalize(logits, seen), axis=-1)
        return candidates.with_logits(penalized, sorted=False)

    def _seen(self) -> mx.array:
        longest = max(w.ring.shape[0] for w in self._windows)
        return mx.stack([mx.pad(w.ring, (0, longest - w.ring.shape[0])) for w in self._windows])

    def _penalize(self, logits: mx.array, ids: mx.array) -> mx.array:
        """``logits`` and ``ids`` are (R, N)."""
        count = mx.stack([w.counts[ids[i]] for i, w in enumerate(self._windows)])
        scaled = mx.where(logits <= 0, logits * self._repeat, logits / self._repeat)
        reduced = scaled - (count * self._frequency + self._presence)
        return mx.where(count > 0, reduced, logits)
