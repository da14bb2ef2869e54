"""Seconds that grow along a line, learned from samples: the line changes slowly, its height quickly."""

from __future__ import annotations

SMOOTHING = 0.4


class Trend:
    """``memory``: what a sample weighs once another one has come. ``spread``: the standard deviation of the
    samples' places from which their slope is believed rather than not. ``wary``: a rise is followed at once.
    """

    def __init__(self, memory: float, spread: float, wary: bool) -> None:
        self._line = _Line(memory, spread**2)
        self._wary = wary
        self._correction = 1.0
        """How much dearer things are at present than the line says."""

    def learn(self, x: float, seconds: float) -> None:
        if expected := self._line.at(x):
            surprise = seconds / expected
            smooth = smoothed(self._correction, surprise)
            self._correction = max(surprise, smooth) if self._wary else smooth
        self._line.add(x, seconds)

    @property
    def is_known(self) -> bool:
        return self._line.has_samples

    @property
    def slope(self) -> float:
        return self._correction * self._line.slope

    def at(self, x: float) -> float:
        """0 before the first sample, positive from then on."""
        return self._correction * self._line.at(x)


class _Line:
    """A straight line through samples, the later ones weighing more; it never falls."""

    def __init__(self, memory: float, trusted: float) -> None:
        self._memory = memory
        self._trusted = trusted
        self._weight = 0.0
        self._x = self._y = 0.0
        self._xx = self._xy = 0.0
        """Means, and the sums of squares and products around them."""

    def add(self, x: float, y: float) -> None:
        old = self._weight * self._memory
        self._weight = old + 1
        dx, dy = x - self._x, y - self._y
        self._x += dx / self._weight
        self._y += dy / self._weight
        share = old / self._weight
        self._xx = self._memory * self._xx + share * dx * dx
        self._xy = self._memory * self._xy + share * dx * dy

    @property
    def has_samples(self) -> bool:
        return self._weight > 0

    @property
    def slope(self) -> float:
        return max(0.0, self._xy / (self._xx + self._trusted * self._weight)) if self._weight else 0.0

    def at(self, x: float) -> float:
        return max(self._y + self.slope * (x - self._x), self._y / 16)


def smoothed(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old) if old else new
