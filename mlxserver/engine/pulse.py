"""What the engine thread is at, for those who watch whether it still moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal[
    "loading or forgetting an adapter",
    "writing state",
    "reading messages",
    "slot action",
    "plan",
    "launch",
    "collect",
    "starting again",
]


@dataclass(frozen=True, slots=True)
class Mark:
    """``since``: by the pulse's clock."""

    phase: Phase
    since: float


class Pulse:
    """Written by the engine thread alone, a few times a step; read by anybody, without a lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.mark: Mark | None = None
        """None while it waits for messages, loads the model, or has ended."""

    def enter(self, phase: Phase) -> None:
        self.mark = Mark(phase, self._clock())

    def rest(self) -> None:
        self.mark = None
