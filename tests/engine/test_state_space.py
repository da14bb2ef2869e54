"""State is shared by processes that serve the same model in the same way, and by no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxserver.engine.state_space import state_space
from mlxserver.models.model import Model, ModelInfo
from tests.engine.bench import CONFIG, Letters
from tests.models import tiny

KINDS = ["llama", "gemma3", "gpt_oss", "mamba2", "qwen3_next", "falcon_h1", "deepseek_v3"]
INFO = ModelInfo("tiny", "tiny", tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32")


def space(module: Any, info: ModelInfo = INFO, **config: Any) -> str:
    return state_space(Model(module, Letters(), info), replace(CONFIG, **config))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_model_has_one_name(kind: str) -> None:
    make: Callable[[], Any] = getattr(tiny, kind)
    assert space(make()) == space(make())


def _one_row(module: Any) -> None:
    weight = module.model.embed_tokens.weight
    weight[100] = weight[100] * 1.5


def _two_signs(module: Any) -> None:
    """Whose bits add up to the same in their row."""
    weight = module.model.layers[1].mlp.down_proj.weight
    row = [int(n) for n in mx.argsort(weight[20]).tolist()]  # type: ignore[union-attr, arg-type]
    for column in row[0], row[-1]:
        weight[20, column] = -weight[20, column]


def _one_norm(module: Any) -> None:
    norm = module.model.norm.weight
    norm[-1] = norm[-1] + 1


def _epsilon(module: Any) -> None:
    module.model.layers[0].input_layernorm.eps = 0.1


def _packed_row(module: Any) -> None:
    weight = module.model.embed_tokens.weight
    weight[200, 0] = weight[200, 0] + 1


def _quantized() -> Any:
    module = tiny.llama(intermediate_size=64)
    nn.quantize(module, 32, 4)
    return module


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (tiny.llama, _one_row),
        (tiny.llama, _two_signs),
        (tiny.llama, _one_norm),
        (tiny.llama, _epsilon),
        (_quantized, _packed_row),
    ],
)
def test_a_model_that_differs_little_has_another(
    make: Callable[[], Any], change: Callable[[Any], None]
) -> None:
    module = make()
    before = space(module)
    change(module)
    assert space(module) != before


def test_hyperparameters_without_weights_count() -> None:
    assert space(tiny.gemma3()) != space(tiny.gemma3(sliding_window=8))
    assert space(tiny.llama()) != space(tiny.llama(rms_norm_eps=1e-6))


@pytest.mark.parametrize("config", [{"cache_type_k": "f16"}, {"cache_type_v": "f16"}, {"swa_full": True}])
def test_how_state_is_held_counts(config: dict[str, Any]) -> None:
    module = tiny.llama()
    assert space(module) != space(module, **config)


def test_compute_type_and_rotary_embedding_count() -> None:
    module = tiny.llama()
    before = space(module)
    assert space(module, replace(INFO, rope="other")) != before
    module.set_dtype(mx.float16)
    assert space(module) != before


def test_slots_and_batches_do_not_count() -> None:
    module = tiny.llama()
    assert space(module) == space(module, n_slots=1, n_ctx=512, n_ubatch=7, cache_ram=1)
