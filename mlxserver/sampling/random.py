"""The reference's random numbers: std::mt19937 with libstdc++'s uniform_real_distribution.

A row's numbers depend on its seed alone, never on its neighbours in the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxserver.sampling.params import RANDOM_SEED

_WORD = 2.0**32
_CHUNK = 256


class Mersenne:
    """One std::mt19937, read either as doubles (two words each) or as floats (one word each)."""

    def __init__(self, seed: int) -> None:
        actual = secrets.randbits(32) if seed == RANDOM_SEED else seed
        self._words = np.random.RandomState(actual)

    def doubles(self, n: int) -> NDArray[np.float32]:
        """``n`` draws of uniform_real_distribution<double>(0, 1), rounded to the device's floats."""
        words = self._raw(2 * n).astype(np.float64).reshape(n, 2)
        draws: NDArray[np.float32] = ((words[:, 0] + words[:, 1] * _WORD) / _WORD**2).astype(np.float32)
        return draws

    def floats(self, n: int) -> NDArray[np.float32]:
        """``n`` draws of uniform_real_distribution<float>(0, 1)."""
        draws = self._raw(n).astype(np.float32) / np.float32(_WORD)
        below_one: NDArray[np.float32] = np.minimum(draws, np.nextafter(np.float32(1), np.float32(0)))
        return below_one

    def _raw(self, n: int) -> NDArray[np.uint32]:
        return self._words.randint(0, 2**32, size=n, dtype=np.uint32)


class Draws:
    """One draw per call, made ahead in chunks."""

    CHANGES = ("_at",)

    def __init__(self, generate: Callable[[int], NDArray[np.float32]]) -> None:
        self._generate = generate
        self._drawn: list[float] = []
        self._at = 0

    def next(self) -> float:
        if self._at == len(self._drawn):
            self._drawn.extend(self._generate(_CHUNK).tolist())
        self._at += 1
        return self._drawn[self._at - 1]


class ConditionalDraws:
    """Draws that are consumed only where a condition known to the device holds.

    The host draws ahead, the device counts what was consumed, so nothing waits for the condition.
    """

    CHANGES = ("_calls", "used")

    def __init__(self, generate: Callable[[int], NDArray[np.float32]]) -> None:
        self._generate = generate
        self._drawn = generate(_CHUNK)
        self._table = mx.array(self._drawn)
        self._calls = 0
        self.used = mx.array(0, dtype=mx.int32)

    def take(self, condition: mx.array) -> mx.array:
        """The next draw (scalar); it counts as consumed where ``condition`` (scalar bool) holds."""
        if self._calls == len(self._drawn):
            self._drawn = np.concatenate([self._drawn, self._generate(len(self._drawn))])
            self._table = mx.array(self._drawn)
        self._calls += 1
        draw = self._table[self.used]
        self.used = self.used + condition.astype(mx.int32)
        return draw

    def give_back(self, condition: mx.array) -> None:
        """The last draw does not count as consumed where ``condition`` (scalar bool) holds."""
        self.used = self.used - condition.astype(mx.int32)


def take_draws(draws: list[ConditionalDraws], condition: mx.array) -> mx.array:
    """One draw a row: ``condition`` (R, 1) → (R, 1)."""
    return mx.stack([d.take(condition[i, 0]) for i, d in enumerate(draws)])[:, None]
