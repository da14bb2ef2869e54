"""How much memory a server may take: as the option says, else what the machine can spare at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

MIB = 2**20
MARGIN_SHARE, LEAST_MARGIN = 16, 256 * MIB
"""What is left to the rest of the process: a sixteenth, but this at least."""
PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """``nbytes`` of MLX's arrays; None: no bound.

    ``is_given``: by the option. Else it is an estimate, and a model that does not fit is only warned of.
    """

    nbytes: int | None = None
    is_given: bool = False


def memory_limit(option: int) -> MemoryLimit:
    """``option``: MiB; 0: no bound; negative: what the machine can spare."""
    if option >= 0:
        return MemoryLimit(option * MIB or None, is_given=True)
    if mx.metal.is_available():
        # the rest of the machine's memory is the system's and other programs' already
        spare: int | None = int(mx.device_info()["max_recommended_working_set_size"])
    else:
        spare = spare_memory(PROC, CGROUP, with_swap=False)
    return MemoryLimit(None if spare is None else max(0, spare - max(LEAST_MARGIN, spare // MARGIN_SHARE)))


def most_memory() -> int | None:
    """Bytes with which the system ends the process for certain; None where that cannot be told."""
    return None if mx.metal.is_available() else spare_memory(PROC, CGROUP, with_swap=True)


def spare_memory(proc: Path, cgroup: Path, with_swap: bool) -> int | None:
    """Bytes that Linux can still give this process; None where it does not tell.

    ``proc``, ``cgroup``: where the two file systems are mounted. A container sees its own group as the root.
    """
    known = _meminfo(proc / "meminfo")
    rooms = []
    if "MemAvailable" in known:
        rooms.append(known["MemAvailable"] + (known.get("SwapFree", 0) if with_swap else 0))
    for folder in [cgroup, *_own_groups(proc / "self" / "cgroup", cgroup)]:
        for most, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / most)
            if limit is not None and limit < 2**60:  # a larger one is how version 1 says: none
                cached = _inactive_file(folder / "memory.stat")
                rooms.append(max(0, limit - max(0, (_number(folder / used) or 0) - cached)))
    return min(rooms, default=None)


def _own_groups(file: Path, cgroup: Path) -> list[Path]:
    """The folders of the process's groups and all above them; none where they are not mounted."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            own = cgroup / controllers / name.lstrip("/")
            folders += [each for each in (own, *own.parents) if each != cgroup and cgroup in each.parents]
    return folders


def _meminfo(file: Path) -> dict[str, int]:
    """Bytes by the kernel's names."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}


def _inactive_file(file: Path) -> int:
    """Bytes of files that the group can give back."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    stats = {words[0]: int(words[1]) for words in lines if len(words) == 2}
    return stats.get("total_inactive_file", stats.get("inactive_file", 0))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
