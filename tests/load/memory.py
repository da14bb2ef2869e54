"""The memory of a server over time: samples, slopes, and whether they are flat."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.load.http import ask

MIB = 2**20
FIRST_SHARE = 1 / 3
"""Of the time, in which buffers grow and caches fill."""
MAX_RISE: Mapping[str, int] = {"active": 4 * MIB, "resident": 16 * MIB}
"""Bytes that the fitted line may rise over the rest of the time."""


@dataclass(frozen=True)
class Sample:
    """``seconds`` since the start; ``resident`` bytes of the process, ``active`` bytes of MLX's arrays."""

    seconds: float
    resident: int
    active: int
    cached: int


@dataclass(frozen=True)
class Line:
    """A least-squares line over the last two thirds of the time."""

    per_minute: float
    """Bytes."""
    rise: float
    """Bytes, from the beginning of these two thirds to the end."""
    mean: float
    """Bytes."""


def line(samples: Sequence[Sample], name: str) -> Line:
    end = samples[-1].seconds
    late = [sample for sample in samples if sample.seconds >= end * FIRST_SHARE]
    seconds = np.array([sample.seconds for sample in late])
    values = np.array([getattr(sample, name) for sample in late], dtype=float)
    slope = float(np.polyfit(seconds - seconds[0], values, 1)[0])
    return Line(slope * 60, slope * float(seconds[-1] - seconds[0]), float(values.mean()))


def too_steep(lines: Mapping[str, Line]) -> list[str]:
    return [
        f"{name} memory rises by {lines[name].rise / MIB:.1f} MiB, {most / MIB:.0f} MiB are allowed"
        for name, most in MAX_RISE.items()
        if lines[name].rise > most
    ]


def resident_bytes(pid: int) -> int:
    return 1024 * int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)]))


def metrics(url: str) -> dict[str, float]:
    """Each metric's value, labels within its name."""
    rows = [row for row in ask(url, "/metrics").splitlines() if not row.startswith("#")]
    return {name: float(value) for name, value in (row.rsplit(" ", 1) for row in rows)}


@dataclass
class Watch:
    """Takes a sample every ``period`` seconds until it is stopped."""

    url: str
    pid: int
    period: float
    samples: list[Sample] = field(default_factory=list)
    error: BaseException | None = None

    def __enter__(self) -> Watch:
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.period):
                self.samples.append(self._sample())
        except BaseException as error:
            self.error = error

    def _sample(self) -> Sample:
        found = metrics(self.url)
        active, cached = found["mlxserver:memory_active_bytes"], found["mlxserver:memory_cached_bytes"]
        seconds = time.monotonic() - self._start
        return Sample(seconds, resident_bytes(self.pid), int(active), int(cached))
