"""Each row of a batch with its own adapters gives what it gives alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxserver.models.caches import cache_maker
from mlxserver.models.encoders.bert import Model as Encoder
from mlxserver.models.encoders.bert import ModelArgs
from mlxserver.models.lora.adapter import Adapter, AdapterError
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.lora.rows import RowAdapters
from mlxserver.models.lora.targets import find_targets
from tests.models import tiny
from tests.models.lora.adapters import adapter

PROMPT = (5, 17, 200, 33, 8)
STEPS = 6
Q_PROJ = "model.layers.0.self_attn.q_proj"


def quantized(build: Callable[..., nn.Module], mode: str, **config: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = build(hidden_size=64, intermediate_size=64, **config)
        nn.quantize(module, 32, 4, mode=mode)
        return module

    return make


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": tiny.llama,
    "qwen3": tiny.qwen3,
    "gemma3": tiny.gemma3,
    "mixtral": tiny.mixtral,
    "gpt_oss": tiny.gpt_oss,
    "qwen3_next": tiny.qwen3_next,
    "falcon_h1": tiny.falcon_h1,
    "llama quantised": quantized(tiny.llama, "affine"),
    "qwen3 quantised": quantized(tiny.qwen3, "affine"),
    "llama mxfp4": quantized(tiny.llama, "mxfp4"),
    "mixtral quantised": quantized(tiny.mixtral, "affine"),
}


def with_adapters(module: nn.Module, **how: Any) -> tuple[LoadedAdapters, list[Adapter]]:
    """Two of different ranks, one of them for half of the layers."""
    loaded = LoadedAdapters(module)
    paths = [path for path in find_targets(module) if "conv" not in path]
    adapters = [adapter(module, 1, 4, paths=paths, in_head=True), adapter(module, 2, 3, paths=paths[::2])]
    for one in adapters:
        loaded.add(one)
    return loaded, adapters


def some_rows(adapters: Sequence[Adapter]) -> list[RowAdapters]:
    a, b = (one.digest for one in adapters)
    return [(), ((a, 1.0),), ((b, -0.5),), ((a, 0.25), (b, 1.0)), (), ((b, 1.0),), ((a, 1.0),)]


def greedy(
    module: nn.Module, loaded: LoadedAdapters, rows: list[RowAdapters], prompt: Sequence[int] = PROMPT
) -> tuple[list[list[int]], mx.array]:
    """Tokens of each row, and the logits (rows, steps, n_vocab) that they were chosen by."""
    caches = cache_maker(module)()
    tokens = mx.array([prompt] * len(rows))
    chosen, logits = [], []
    for _ in range(STEPS):
        loaded.use(rows)
        logits.append(module(tokens, cache=caches)[:, -1])
        tokens = logits[-1].argmax(-1)[:, None]
        chosen.append(tokens)
    return mx.concatenate(chosen, axis=1).tolist(), mx.stack(logits, axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_a_row_in_a_mixed_batch_gives_what_it_gives_alone(name: str) -> None:
    module = MODELS[name]()
    loaded, adapters = with_adapters(module)
    rows = some_rows(adapters)
    tokens, logits = greedy(module, loaded, rows)
    for index, row in enumerate(rows):
        alone, alone_logits = greedy(module, loaded, [row])
        assert tokens[index] == alone[0]
        np.testing.assert_allclose(
            logits[index], alone_logits[0], atol=2e-5 * mx.abs(alone_logits).max().item()
        )
    firsts = {row: logits[index, 0] for index, row in enumerate(rows)}
    assert not any(mx.allclose(firsts[x], firsts[y], atol=0.1) for x in firsts for y in firsts if x != y)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_rows_keep_their_adapters_where_experts_sort_the_tokens(name: str) -> None:
    """mlx-lm sorts where there are 64 of them or more, which a decode step of many rows is too."""
    module = MODELS[name]()
    loaded, adapters = with_adapters(module)
    rows = some_rows(adapters) * 6
    assert len(rows) * 2 >= 64
    tokens, _ = greedy(module, loaded, rows)
    for index, row in enumerate(rows[:7]):
        assert tokens[index] == greedy(module, loaded, [row])[0][0]


def test_an_encoder_with_padded_rows() -> None:
    module = encoder()
    loaded, adapters = with_encoder_adapters(module)
    tokens = mx.array([[3, 4, 5, 6, 0, 0]] * 7)
    rows = some_rows(adapters)
    loaded.use(rows)
    together = module.hidden(tokens, mx.full(7, 4))
    for index, row in enumerate(rows):
        loaded.use([row])
        alone = module.hidden(tokens[:1, :4], mx.array([4]))
        np.testing.assert_allclose(together[index, :4], alone[0], atol=1e-5)
    loaded.use([()])
    assert not mx.allclose(together[1, :4], module.hidden(tokens[:1, :4], mx.array([4]))[0], atol=1e-2)


def encoder() -> Encoder:
    mx.random.seed(0)
    module = Encoder(ModelArgs(32, 2, 4, 48, 256, 64))
    mx.eval(module.parameters())
    return module


def with_encoder_adapters(module: Encoder) -> tuple[LoadedAdapters, list[Adapter]]:
    loaded = LoadedAdapters(module)
    paths = [path for path in find_targets(module) if "embed_types" not in path and "positions" not in path]
    adapters = [adapter(module, seed, rank, paths=paths) for seed, rank in ((1, 4), (2, 3))]
    for one in adapters:
        loaded.add(one)
    return loaded, adapters


@pytest.mark.parametrize("path", ["model.embed_types", "model.embed_positions"])
def test_a_layer_whose_input_has_no_rows_is_refused(path: str) -> None:
    module = encoder()
    with pytest.raises(AdapterError, match=f"{path} is no layer that an adapter can be put beside"):
        LoadedAdapters(module).add(adapter(module, 1, 2, paths=[path]))


def test_a_huge_adapter_spoils_its_own_row_only() -> None:
    """Products that overflow to infinity, where a mask by multiplication would give NaN in every row."""
    module = tiny.llama()
    loaded = LoadedAdapters(module)
    good, huge = adapter(module, 1, 4), adapter(module, 2, 4, paths=["model.layers.0.mlp.up_proj", "lm_head"])
    parts = {path: replace(part, a=mx.full(part.a.shape, 3e38)) for path, part in huge.parts.items()}
    huge = replace(huge, parts=MappingProxyType(parts), digest="huge")
    loaded.add(good)
    loaded.add(huge)
    rows: list[RowAdapters] = [(), ((huge.digest, 1.0),), ((good.digest, 1.0),)]
    _, logits = greedy(module, loaded, rows)
    assert not mx.isfinite(logits[1]).any()
    for index in (0, 2):
        _, alone = greedy(module, loaded, [rows[index]])
        np.testing.assert_allclose(logits[index], alone[0], atol=1e-4)


def test_without_a_row_that_uses_one_nothing_changes_by_a_bit() -> None:
    module = tiny.llama()
    before = module(mx.array([PROMPT]))
    names = [name for name, _ in tree_flatten(module.parameters())]
    loaded, adapters = with_adapters(module)
    assert [name for name, _ in tree_flatten(module.parameters())] == names
    assert mx.array_equal(module(mx.array([PROMPT])), before)
    loaded.use([((adapters[0].digest, 1.0),)])
    assert not mx.array_equal(module(mx.array([PROMPT])), before)
    for rows in (
        [],
        [()],
        [((adapters[0].digest, 0.0),)],
        [((adapters[0].digest, 1.0), (adapters[0].digest, -1.0))],
    ):
        loaded.use(rows)
        assert mx.array_equal(module(mx.array([PROMPT])), before)


def test_base_rows_of_a_mixed_batch_do_not_change_by_a_bit() -> None:
    module = tiny.llama()
    before = module(mx.array([PROMPT] * 3))
    loaded, adapters = with_adapters(module)
    loaded.use([(), ((adapters[0].digest, 1.0),), ()])
    after = module(mx.array([PROMPT] * 3))
    assert mx.array_equal(after[0], before[0]) and mx.array_equal(after[2], before[2])


def test_an_adapter_named_twice_has_the_sum_of_its_scales() -> None:
    module = tiny.llama()
    loaded, (one, _) = with_adapters(module)
    loaded.use([((one.digest, 0.25), (one.digest, 0.5))])
    twice = module(mx.array([PROMPT]))
    loaded.use([((one.digest, 0.75),)])
    assert mx.array_equal(twice, module(mx.array([PROMPT])))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_what_is_removed_leaves_no_trace(name: str) -> None:
    module = MODELS[name]()
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
    assert not any("lora" in vars(part) for part in module.modules())
    with pytest.raises(KeyError):
        loaded.use([((adapters[0].digest, 1.0),)])
    with pytest.raises(KeyError):
        loaded.remove(adapters[0].digest)


def test_an_adapter_that_comes_back_is_the_new_one() -> None:
    """Nothing of what was made for the old one is kept, whatever its digest says."""
    module = tiny.llama()
    loaded, (a, b) = with_adapters(module)
    rows: list[RowAdapters] = [((a.digest, 1.0),), ((b.digest, 1.0),)]
    loaded.use(rows)
    first = module(mx.array([PROMPT] * 2))
    loaded.remove(a.digest)
    loaded.add(replace(adapter(module, 7, 4), digest=a.digest))
    loaded.use(rows)
    second = module(mx.array([PROMPT] * 2))
    assert not mx.allclose(first[0], second[0], atol=1e-2)
    np.testing.assert_allclose(first[1], second[1], atol=1e-4)


def test_only_the_last_joined_matrices_are_kept() -> None:
    module = tiny.llama()
    loaded = LoadedAdapters(module)
    adapters = [adapter(module, seed, 64, paths=["model.layers.0.mlp.up_proj"]) for seed in range(6)]
    for one in adapters:
        loaded.add(one)

    def bytes_after(rows: list[RowAdapters]) -> int:
        loaded.use(rows)
        mx.eval(module(mx.array([PROMPT] * len(rows))))
        return mx.get_active_memory()

    used = [
        bytes_after([((one.digest, 1.0),), ((other.digest, 1.0),)])
        for one in adapters
        for other in adapters
        if one is not other
    ]
    joined = 2 * adapters[0].n_bytes
    assert max(used[2:]) - used[1] < joined


def test_another_number_of_rows_than_was_chosen_for() -> None:
    module = tiny.llama()
    loaded, (a, b) = with_adapters(module)
    loaded.use([((a.digest, 1.0),), ((b.digest, 1.0),)])
    with pytest.raises(ValueError, match="3 rows in the forward pass, adapters were chosen for 2"):
        module(mx.array([PROMPT] * 3))
    loaded.use([((a.digest, 1.0),)] * 2)
    assert module(mx.array([PROMPT] * 3)).shape[0] == 3
