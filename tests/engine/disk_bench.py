"""Engines one after the other on one folder of the disk tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlxserver.engine.task import DiskStats, Started
from tests.engine.bench import Bench, oracle
from tests.models import tiny

PROMPT = [(11 * i + 5) % 250 for i in range(300)]


class Served:
    """One engine at a time, on a tiny model."""

    def __init__(self, folder: Path, make: Callable[[], Any] = tiny.llama, **changes: Any) -> None:
        self.make = make
        self.fields = {"cache_disk": str(folder), "cache_disk_prefetch": "wait", **changes}
        self.module = make()
        self.ids = iter(range(10**6))
        self.bench = Bench(make, **self.fields)

    def restart(self, **changes: Any) -> None:
        self.close()
        self.bench = Bench(self.make, **{**self.fields, **changes})

    def close(self) -> None:
        self.bench.close()
        assert self.bench.errors == []

    def send(self, prompt: list[int], n: int = 8, **fields: Any) -> int:
        task_id = next(self.ids)
        self.bench.submit(task_id, prompt, n_predict=n, **fields)
        return task_id

    def result(self, task_id: int) -> tuple[list[int], int, int | None]:
        """(tokens, tokens reused, those from disk)."""
        (tokens,) = self.bench.finish(task_id)
        (started,) = self.bench.of(task_id, Started)
        return tokens, started.n_past, started.n_disk

    def ask(self, prompt: list[int], n: int = 8, **fields: Any) -> tuple[list[int], int, int | None]:
        return self.result(self.send(prompt, n, **fields))

    def cold(self, prompt: list[int], n: int = 8) -> list[int]:
        return oracle(self.module, prompt, n)

    def wait_written(self, n: int) -> None:
        """Until so many files were written."""
        end = time.monotonic() + 10
        while self.stats.written_blocks < n and time.monotonic() < end:
            time.sleep(0.01)
        assert self.stats.written_blocks == n

    @property
    def stats(self) -> DiskStats:
        stats = self.bench.engine.snapshot().disk
        assert stats is not None
        return stats
