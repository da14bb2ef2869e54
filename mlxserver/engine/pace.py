"""How many prompt tokens a step may take beside running streams."""

from __future__ import annotations

import math
from collections.abc import Sequence

PROMPT_SHARE = 3.0
"""A prompt chunk may take this many times as long as the decode step that it delays."""
MOST_SHARES = 4
"""Of several prompts each has that share, but no more than so many together."""
LONGEST_CHUNK_SECONDS = 1.0
"""With no stream running a step still ends about this soon, for cancellations and new requests."""
SMALLEST_CHUNK = 4
SMALLEST_EARLY_CHUNK = 16
EARLY = 512
"""Up to this position a token costs little beside what a chunk of any size does: short prompts are to be
through in few chunks."""
FIRST_CHUNK = 32
"""Before any prompt was timed."""
SMOOTHING = 0.4
MEMORY = 0.9
"""What a sample of a prompt token's cost weighs once another one has come."""
TRUSTED_SPREAD = 64.0**2
"""Variance of the samples' positions (tokens squared) from which their slope is believed rather than not."""


def smallest_chunk(start: int) -> int:
    """Tokens of a prompt, from ``start`` on, below which a chunk is not worth its own cost."""
    return SMALLEST_EARLY_CHUNK if start < EARLY else SMALLEST_CHUNK


class Pace:
    """Learns the time of a decode step, and that of a prompt token as it grows with the token's position."""

    def __init__(self) -> None:
        self._decode_seconds = 0.0
        self._line = _Line()
        self._correction = 1.0
        """How much dearer tokens are at present than the line says."""
        self.seconds_per_token = 0.0
        """Of a prompt, lately; 0 before the first one."""

    def ran(self, seconds: float, parts: Sequence[tuple[int, int]], n_decodes: int) -> None:
        """A step evaluated the prompt tokens ``(start, end)`` of each prompt, and ``n_decodes`` rows."""
        n = sum(end - start for start, end in parts)
        if n == 0 and n_decodes:
            self._decode_seconds = _smooth(self._decode_seconds, seconds)
        elif n >= SMALLEST_CHUNK:
            own = max(seconds - (self._decode_seconds if n_decodes else 0.0), seconds / 10)
            self._learn(sum((end - start) * (start + end) for start, end in parts) / (2 * n), own / n)

    def _learn(self, position: float, cost: float) -> None:
        """A token at this position, on the average, cost so many seconds."""
        expected = self._line.at(position)
        if expected:
            surprise = cost / expected
            # a rise is followed at once: streams wait for it
            self._correction = max(surprise, _smooth(self._correction, surprise))
        self._line.add(position, cost)
        self.seconds_per_token = _smooth(self.seconds_per_token, cost)

    def seconds(self, streams_run: bool, n_waiting: int = 1) -> float:
        """What the tokens of ``n_waiting`` prompts may take in a step."""
        if not streams_run:
            return LONGEST_CHUNK_SECONDS
        alone = PROMPT_SHARE * self._decode_seconds
        return max(alone, min(LONGEST_CHUNK_SECONDS, alone * min(n_waiting, MOST_SHARES)))

    def cost(self, start: int, end: int) -> float:
        """Seconds that a prompt's tokens ``[start, end)`` will take."""
        return (end - start) * self._correction * self._line.at((start + end) / 2)

    def budget(self, seconds: float, start: int = 0) -> int:
        """Tokens of a prompt, from ``start`` on, that are done in ``seconds``."""
        first = self._correction * self._line.at(start)
        if not first:
            return FIRST_CHUNK
        half = self._correction * self._line.slope / 2
        # n tokens take n * first + n * n * half
        seconds = max(0.0, seconds)
        return int(2 * seconds / (first + math.sqrt(first * first + 4 * half * seconds)))


class _Line:
    """A straight line through samples, the later ones weighing more; it never falls."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._x = self._y = 0.0
        self._xx = self._xy = 0.0
        """Means, and the sums of squares and products around them."""

    def add(self, x: float, y: float) -> None:
        old = self._weight * MEMORY
        self._weight = old + 1
        dx, dy = x - self._x, y - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        share = old / self._weight
        self._xx = MEMORY * self._xx + share * dx * dx
        self._xy = MEMORY * self._xy + share * dx * dy

    @property
    def slope(self) -> float:
        return max(0.0, self._xy / (self._xx + TRUSTED_SPREAD * self._weight)) if self._weight else 0.0

    def at(self, x: float) -> float:
        """0 before the first sample, positive from then on."""
        return max(self._y + self.slope * (x - self._x), self._y / 16)


def _smooth(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old) if old else new
