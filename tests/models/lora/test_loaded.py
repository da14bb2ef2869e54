"""Each row of a batch with its own adapters gives what it gives alone."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxserver.models.caches import cache_maker
from mlxserver.models.lora.adapter import Adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.lora.rows import RowAdapters
from tests.models import tiny
from tests.models.lora.adapters import adapter

PROMPT = (5, 17, 200, 33, 8)
STEPS = 6


def with_adapters(module: nn.Module, **how: object) -> tuple[LoadedAdapters, list[Adapter]]:
    """Two of different ranks."""
    loaded = LoadedAdapters(module)
    adapters = [adapter(module, seed, rank, **how) for seed, rank in ((1, 4), (2, 3))]
    for one in adapters:
        loaded.add(one)
    return loaded, adapters


def some_rows(adapters: list[Adapter]) -> list[RowAdapters]:
    a, b = (one.digest for one in adapters)
    return [(), ((a, 1.0),), ((b, -0.5),), ((a, 0.25), (b, 1.0)), (), ((b, 1.0),), ((a, 1.0),)]


def greedy(
    module: nn.Module, loaded: LoadedAdapters, rows: list[RowAdapters]
) -> tuple[list[list[int]], mx.array]:
    """Tokens of each row, and the logits (rows, steps, n_vocab) that they were chosen by."""
    caches = cache_maker(module)()
    tokens = mx.array([PROMPT] * len(rows))
    chosen, logits = [], []
    for _ in range(STEPS):
        loaded.use(rows)
        logits.append(module(tokens, cache=caches)[:, -1])
        tokens = logits[-1].argmax(-1)[:, None]
        chosen.append(tokens)
    return mx.concatenate(chosen, axis=1).tolist(), mx.stack(logits, axis=1)


@pytest.mark.parametrize("build", [tiny.llama, tiny.qwen3], ids=["llama", "qwen3"])
def test_a_row_in_a_mixed_batch_gives_what_it_gives_alone(build: Callable[[], nn.Module]) -> None:
    module = build()
    loaded, adapters = with_adapters(module)
    rows = some_rows(adapters)
    tokens, logits = greedy(module, loaded, rows)
    for index, row in enumerate(rows):
        alone, alone_logits = greedy(module, loaded, [row])
        assert tokens[index] == alone[0]
        np.testing.assert_allclose(logits[index], alone_logits[0], atol=1e-4, rtol=1e-5)
    assert len({tuple(row) for row in tokens}) == len(set(rows))


def test_without_a_row_that_uses_one_nothing_changes_by_a_bit() -> None:
    module = tiny.llama()
    before = module(mx.array([PROMPT]))
    names = [name for name, _ in tree_flatten(module.parameters())]
    loaded, adapters = with_adapters(module)
    assert [name for name, _ in tree_flatten(module.parameters())] == names
    assert mx.array_equal(module(mx.array([PROMPT])), before)
    loaded.use([((adapters[0].digest, 1.0),)])
    assert not mx.array_equal(module(mx.array([PROMPT])), before)
    loaded.use([((adapters[0].digest, 0.0),)])
    assert mx.array_equal(module(mx.array([PROMPT])), before)


def test_what_is_removed_leaves_no_trace() -> None:
    module = tiny.llama()
    before = module(mx.array([PROMPT]))
    classes = [type(part) for part in module.modules()]
    loaded, adapters = with_adapters(module)
    loaded.use([((adapters[0].digest, 1.0),)])
    changed = module(mx.array([PROMPT]))
    loaded.remove(adapters[1].digest)
    loaded.use([((adapters[0].digest, 1.0),)])
    assert mx.array_equal(module(mx.array([PROMPT])), changed)
    loaded.remove(adapters[0].digest)
    assert mx.array_equal(module(mx.array([PROMPT])), before)
    assert [type(part) for part in module.modules()] == classes
    with pytest.raises(KeyError):
        loaded.use([((adapters[0].digest, 1.0),)])
