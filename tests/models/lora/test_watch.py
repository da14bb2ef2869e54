"""Layers that a model does not simply call are found, and refused by name."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.lora.targets import find_targets
from mlxserver.models.lora.watch import check_calls
from tests.models import tiny
from tests.models.lora.adapters import adapter


class Tiny(nn.Module):
    """Two layers and what is done with them."""

    def __init__(self, call: Callable[[Tiny, mx.array], mx.array]) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.proj = nn.Linear(8, 8)
        self.layers = [self.proj]
        self._call = call

    def __call__(self, tokens: mx.array, cache: object = None) -> mx.array:
        return self._call(self, tokens)


def fused(model: Tiny, tokens: mx.array) -> mx.array:
    return model.embed(tokens) @ model.proj.weight.T


def by_key(model: Tiny, tokens: mx.array) -> mx.array:
    return model.proj(model.embed(tokens)) + model.proj["bias"]


def heads_first(model: Tiny, tokens: mx.array) -> mx.array:
    return model.proj(model.embed(tokens).swapaxes(0, 1)).swapaxes(0, 1)


def prompts_only(model: Tiny, tokens: mx.array) -> mx.array:
    hidden = model.embed(tokens)
    return model.proj(hidden) if tokens.shape[1] > 1 else hidden


def compiled(model: Tiny, tokens: mx.array) -> mx.array:
    if not hasattr(model, "_step"):
        model._step = mx.compile(lambda x: model.proj(x))
    return model._step(model.embed(tokens))


@pytest.mark.parametrize("call", [fused, by_key, heads_first, prompts_only, compiled])
def test_a_layer_that_is_not_simply_called(call: Callable[[Tiny, mx.array], mx.array]) -> None:
    module = Tiny(call)
    before = [type(part) for part in module.modules()]
    with pytest.raises(AdapterError, match="proj is no layer that an adapter can be put beside"):
        LoadedAdapters(module).add(adapter(module, 1, 2, paths=["proj"]))
    assert [type(part) for part in module.modules()] == before
    assert not any("watched" in vars(part) or "lora" in vars(part) for part in module.modules())


def one_row_only(model: Tiny, tokens: mx.array) -> mx.array:
    return model.proj(model.embed(tokens).reshape(1, -1, 8)).reshape(1, tokens.shape[1], 8)


def test_a_model_that_raises_is_refused() -> None:
    with pytest.raises(AdapterError, match="the model cannot be watched with adapters: .*reshape"):
        LoadedAdapters(module := Tiny(one_row_only)).add(adapter(module, 1, 2, paths=["proj"]))


def flat(model: Tiny, tokens: mx.array) -> mx.array:
    return model.proj(model.embed(tokens).reshape(-1, 8)).reshape(*tokens.shape, 8)


def test_rows_follow_tokens_that_lie_in_one_axis() -> None:
    module = Tiny(flat)
    loaded = LoadedAdapters(module)
    one = adapter(module, 1, 2, paths=["proj"])
    loaded.add(one)
    tokens = mx.array([[1, 2, 3]] * 2)
    loaded.use([((one.digest, 1.0),)])
    changed = module(tokens)
    loaded.use([()])
    plain = module(tokens)
    loaded.use([(), ((one.digest, 1.0),)])
    mixed = module(tokens)
    assert mx.allclose(mixed[0], plain[0], atol=1e-6) and mx.allclose(mixed[1], changed[1], atol=1e-6)
    assert not mx.allclose(changed, plain, atol=1e-3)


@pytest.mark.parametrize("name", tiny.ALL)
def test_the_layers_of_mlx_lms_classes(name: str) -> None:
    """All of them can have an adapter; those that a class reads past a call are no targets to begin with."""
    module = tiny.ALL[name]()
    check_calls(module, find_targets(module))


def test_mla_has_layers_that_are_no_targets() -> None:
    paths = find_targets(tiny.deepseek_v3())
    assert "model.layers.0.self_attn.kv_a_proj_with_mqa" in paths
    assert not any("embed_q" in path or "unembed_out" in path for path in paths)
