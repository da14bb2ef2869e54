"""Counts what was read from disk and what became of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mlxserver.engine.disk_tier import HeldOnDisk, Part
from mlxserver.engine.prefetch_policy import STOP_REASONS, StopReason
from mlxserver.engine.task import DiskStats


@dataclass(slots=True)
class Amount:
    files: int = 0
    nbytes: int = 0

    def add(self, part: Part) -> None:
        self.files += part.n_files
        self.nbytes += part.nbytes


@dataclass(slots=True)
class RestoreBooks:
    """What was read is a hit or wasted in the end: ``read`` = ``hit`` + ``wasted`` + what requests hold."""

    read: Amount = field(default_factory=Amount)
    hit: Amount = field(default_factory=Amount)
    """Published in the trie, and taken over by the prompt that it was read for."""
    wasted: Amount = field(default_factory=Amount)
    seconds: float = 0.0
    """That the reader was at it."""
    stops: dict[StopReason, int] = field(default_factory=lambda: dict.fromkeys(STOP_REASONS, 0))

    def waste(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.wasted.add(part)

    def stats(self, held: HeldOnDisk) -> DiskStats:
        return DiskStats(
            blocks=held.blocks + held.snapshots,
            nbytes=held.nbytes,
            limit=-1 if held.limit is None else held.limit,
            written_blocks=held.written,
            written_bytes=held.written_bytes,
            removed_blocks=held.removed,
            dropped_blocks=held.dropped,
            errors=held.failed,
            read_blocks=self.read.files,
            read_bytes=self.read.nbytes,
            hit_blocks=self.hit.files,
            hit_bytes=self.hit.nbytes,
            wasted_blocks=self.wasted.files,
            wasted_bytes=self.wasted.nbytes,
            prefetch_seconds=self.seconds,
            prefetches={str(reason): n for reason, n in self.stops.items()},
        )

    def check(self, held: Iterable[Part]) -> None:
        """Raise AssertionError where something that was read is nowhere."""
        files, nbytes = self.hit.files + self.wasted.files, self.hit.nbytes + self.wasted.nbytes
        for part in held:
            files, nbytes = files + part.n_files, nbytes + part.nbytes
        assert (self.read.files, self.read.nbytes) == (files, nbytes), "restored blocks are miscounted"
