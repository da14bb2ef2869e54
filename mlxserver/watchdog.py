"""Ends a process whose engine thread is stuck: a step that never returns is answered by nobody else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from mlxserver.engine.pulse import Mark, Pulse
from mlxserver.telemetry.log import srv

log = srv("watchdog")

WATCHDOG_THREAD = "watchdog"
"""The thread's name."""
EXIT_SECONDS = 15.0
"""How long the process may take to tell its clients and to end; it is ended then."""
LONGEST_LOOK_SECONDS = 1.0


class EngineStuck(Exception):
    """One line that names the phase."""


class Watch:
    """Whether a pulse has been in one phase for longer than ``limit`` seconds.

    Time in which nobody looked does not count: the whole process was stopped then, or the machine slept.
    """

    def __init__(self, pulse: Pulse, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pulse = pulse
        self._limit = limit
        self._clock = clock
        self.seconds_per_look = min(LONGEST_LOOK_SECONDS, limit / 10)
        self._mark: Mark | None = None
        self._looked = clock()
        self._stuck_for = 0.0

    def look(self) -> EngineStuck | None:
        """To be called every ``seconds_per_look``."""
        now, mark = self._clock(), self._pulse.mark
        seen = min(now - self._looked, 2 * self.seconds_per_look)
        self._stuck_for = self._stuck_for + seen if mark is not None and mark is self._mark else 0.0
        self._looked, self._mark = now, mark
        if mark is None or self._stuck_for < self._limit:
            return None
        return EngineStuck(
            f"it has been at '{mark.phase}' for {now - mark.since:.0f} s (--watchdog {self._limit:g})"
        )


class Watchdog:
    """Looks from a thread of its own, since the event loop may wait for a lock that the engine holds.

    ``on_stuck`` is called on that thread, once; the process then has EXIT_SECONDS left.
    """

    def __init__(self, watch: Watch, on_stuck: Callable[[EngineStuck], None]) -> None:
        self._watch = watch
        self._on_stuck = on_stuck
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._main, name=WATCHDOG_THREAD, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def _main(self) -> None:
        while not self._is_over.wait(self._watch.seconds_per_look):
            if stuck := self._watch.look():
                last = threading.Timer(EXIT_SECONDS, os._exit, (1,))
                last.daemon = True
                last.start()  # first of all: what follows may wait for the engine too, even a line of the log
                self._on_stuck(stuck)
                return
