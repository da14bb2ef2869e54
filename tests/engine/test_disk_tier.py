"""State that outlives slots, memory and process: an engine with a folder, and the next one on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.task import DiskStats, Started
from tests.engine.bench import Bench, oracle
from tests.models import tiny

KINDS = ["llama", "mistral_sliding", "gemma3", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"]
PLAIN = {"llama", "deepseek_v3"}
PROMPT = [(11 * i + 5) % 250 for i in range(300)]


class Served:
    """Engines one after the other on one folder."""

    def __init__(self, folder: Path, make: Callable[[], Any] = tiny.llama, **changes: Any) -> None:
        self.make = make
        self.fields = {"cache_disk": str(folder), "cache_disk_prefetch": "wait", **changes}
        self.module = make()
        self.ids = iter(range(10**6))
        self.bench = Bench(make, **self.fields)

    def restart(self, **changes: Any) -> None:
        self.bench.close()
        assert self.bench.errors == []
        self.bench = Bench(self.make, **{**self.fields, **changes})

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

    @property
    def stats(self) -> DiskStats:
        stats = self.bench.engine.snapshot().disk
        assert stats is not None
        return stats


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_goes_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    served = Served(tmp_path, getattr(tiny, kind))
    answer, n_past, n_disk = served.ask(PROMPT)
    assert answer == served.cold(PROMPT) and (n_past, n_disk) == (0, 0)
    served.restart()
    longer = [*PROMPT, *answer, 3, 1, 4]
    tokens, n_past, n_disk = served.ask(longer)
    assert tokens == served.cold(longer)
    assert n_past == n_disk == len(PROMPT) + len(answer) - 1, "only what is new was evaluated"
    stats = served.stats
    assert stats.hit_blocks == stats.read_blocks > 0 and stats.wasted_blocks == 0
    served.bench.close()
    assert served.bench.errors == []
