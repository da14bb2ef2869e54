"""A workload: what it needs of a server, and a function that plays it and gives figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.contestants import Needs, Weights
from bench.running import Server

Figures = dict[str, float]
"""By a label that ends in the unit. Of what is counted by the second more is better, of all else less."""


@dataclass(frozen=True)
class Play:
    """One server, started for this, in one round."""

    server: Server
    weights: Weights
    round: int
    quick: bool
    peak: Path
    """Where ``bench.peak_memory`` writes, for workloads with ``watch_memory``."""

    @property
    def url(self) -> str:
        return self.server.url

    def size(self, n: int) -> int:
        """``n`` tokens, words or requests; an eighth of them in a quick run."""
        return max(n // 8, min(n, 8)) if self.quick else n

    def seed(self, number: int) -> int:
        """Differs from round to round and within one."""
        return 1000 * (self.round + 1) + number


@dataclass(frozen=True)
class Workload:
    title: str
    play: Callable[[Play], Figures]
    needs: Needs = field(default_factory=Needs)
    model: str = "smollm2"
    watch_memory: bool = False
