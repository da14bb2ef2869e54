"""An engine with random adapters, and what each set of them gives cold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxserver.engine import adapters as engine_adapters
from mlxserver.engine.task import Started
from mlxserver.kv.identity import Adapters, CacheIdentity
from mlxserver.models.caches import cache_maker
from mlxserver.models.lora.adapter import Adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.model import Model
from tests.engine.bench import Bench
from tests.models.lora.adapters import adapter

N = 8


def load_by_seed(path: str, model: Model) -> Adapter:
    """In place of reading a file: ``path`` is the number that the adapter is made from."""
    return adapter(model.module, seed=int(path), rank=2 + int(path))


class Adapted:
    """Adapters 1 and 2 are there from the start. ``build`` gives the same model each time."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, build: Callable[[], nn.Module], **changes: Any
    ) -> None:
        monkeypatch.setattr(engine_adapters, "load_adapter", load_by_seed)
        self.module = build()
        self.loaded = LoadedAdapters(self.module)
        made = [adapter(self.module, seed, rank=2 + seed) for seed in (1, 2)]
        self.a, self.b = (each.digest for each in made)
        for each in made:
            self.loaded.add(each)
        self.bench = Bench(build, lora=("1", "2"), **changes)
        self.ids = iter(range(10**6))

    def sets(self) -> list[Adapters]:
        """The base model and several sets, with scales."""
        a, b = self.a, self.b
        both = tuple(sorted([(a, 0.5), (b, 1.0)]))
        return [(), ((a, 1.0),), ((b, 1.0),), ((a, 0.5),), both, ((b, -1.0),)]

    def send(self, prompt: Sequence[int], adapters: Adapters = (), n: int = N, **fields: Any) -> int:
        task_id = next(self.ids)
        identity = CacheIdentity(adapters=adapters)
        self.bench.submit(task_id, prompt, **{"n_predict": n, "identity": identity, **fields})
        return task_id

    def ask(
        self, prompt: Sequence[int], adapters: Adapters = (), n: int = N, **fields: Any
    ) -> tuple[list[int], int]:
        """The tokens, and how many of the prompt's were reused."""
        task_id = self.send(prompt, adapters, n, **fields)
        (tokens,) = self.bench.finish(task_id)
        return tokens, self.n_past(task_id)

    def n_past(self, task_id: int) -> int:
        n: int = self.bench.of(task_id, Started)[0].n_past
        return n

    def cold(
        self, prompt: Sequence[int], adapters: Adapters = (), n: int = N, begins_at: int = 0
    ) -> list[int]:
        """A single run; the adapters evaluate the tokens from ``begins_at`` on."""
        caches, out = cache_maker(self.module)(), []
        if begins_at:
            self.loaded.use([()])
            self.module(mx.array([list(prompt[:begins_at])]), cache=caches)
        self.loaded.use([adapters])
        tokens = list(prompt[begins_at:])
        for _ in range(n):
            logits = self.module(mx.array([tokens]), cache=caches)[:, -1]
            tokens = [int(mx.argmax(logits, axis=-1).item())]
            out += tokens
        return out
