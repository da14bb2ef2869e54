"""How much of the processor other processes used meanwhile: what spoils a measurement."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

STAT = Path("/proc/stat")
IDLE, WAITING_FOR_DISK = 3, 4


class OthersMeter:
    """From its making on. Only children that have ended count as our own."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.before = others_seconds()

    def cores(self) -> float | None:
        """Cores that others kept busy on average; Linux only."""
        after = others_seconds()
        if after is None or self.before is None:
            return None
        return max(after - self.before, 0.0) / (time.perf_counter() - self.start)


def others_seconds() -> float | None:
    """Processor seconds of all cores since the machine's start, less our own and our children's."""
    if not STAT.exists():
        return None
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy_seconds(STAT.read_text()) - sum(usage.ru_utime + usage.ru_stime for usage in own)


def busy_seconds(stat: str) -> float:
    """Of the first line of ``/proc/stat``; what the host took from a virtual machine counts as busy."""
    ticks = [int(each) for each in stat.splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[IDLE] - ticks[WAITING_FOR_DISK]) / os.sysconf("SC_CLK_TCK")
