"""KV types are held against the model at start: refused in llama-server's words, or told in the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from mlxserver.engine.cache_types import cache_types
from mlxserver.models.caches import cache_maker
from mlxserver.models.errors import ModelError
from tests.engine.bench import CONFIG, Bench
from tests.models import tiny


def types(module: Any, k: str = "f16", v: str = "f16", **changes: Any) -> list[str]:
    config = replace(CONFIG, cache_type_k=k, cache_type_v=v, **changes)
    return [kind.name for kind in cache_types(module, cache_maker(module), config)]


def test_the_mapping_is_told_once_a_type(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert types(tiny.llama(head_dim=32), "q5_0", "q8_0") == ["q5_0", "q8_0"]
    assert types(tiny.llama(head_dim=64), "q4_1", "q4_1") == ["q4_1", "q4_1"]
    assert caplog.messages == [
        "KV type q5_0 is held as MLX affine, 5 bits, groups of 32",
        "KV type q8_0 is held as MLX affine, 8 bits, groups of 32",
        "KV type q4_1 is held as MLX affine, 4 bits, groups of 32",
    ]


def test_floats_need_no_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert types(tiny.llama(), "f32", "bf16", flash_attn=False) == ["f32", "bf16"]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("gemma3", "2 layers stay unquantised: RotatingKVCache"),
        ("mamba2", "2 layers stay unquantised: ArraysCache"),
        ("qwen3_next", "3 layers stay unquantised: ArraysCache"),
        ("falcon_h1", "2 layers stay unquantised: CacheList"),
    ],
)
def test_layers_that_stay_unquantised_are_told(
    kind: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    head_dim = {} if kind == "mamba2" else {"head_dim": 32}
    types(getattr(tiny, kind)(**head_dim), "q8_0")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [told]


@pytest.mark.parametrize(
    ("k", "v", "letter"), [("q8_0", "f16", "K"), ("f16", "q4_0", "V"), ("q5_1", "q4_0", "K")]
)
def test_head_dims_that_groups_do_not_divide(k: str, v: str, letter: str) -> None:
    name = k if letter == "K" else v
    with pytest.raises(ModelError) as error:
        types(tiny.llama(head_dim=48), k, v)
    wanted = f"{letter} cache type {name} with block size 32 does not divide n_embd_head_{letter.lower()}=48"
    assert str(error.value) == wanted


def test_keys_and_values_of_unequal_widths_are_judged_each() -> None:
    module = tiny.deepseek_v3(kv_lora_rank=32)
    assert types(module, "q8_0") == ["q8_0", "f16"]
    with pytest.raises(
        ModelError, match="V cache type q8_0 with block size 32 does not divide n_embd_head_v=8"
    ):
        types(module, "q8_0", "q8_0")


def test_quantised_values_need_flash_attention_as_in_llama_server() -> None:
    with pytest.raises(ModelError, match="^quantized V cache requires flash_attn to be enabled$"):
        types(tiny.llama(head_dim=32), v="q8_0", flash_attn=False)
    assert types(tiny.llama(head_dim=32), k="q8_0", flash_attn=False) == ["q8_0", "f16"]


def test_an_engine_refuses_before_it_is_ready() -> None:
    with pytest.raises(ModelError, match="does not divide n_embd_head_k=8"):
        Bench(tiny.llama, cache_type_k="q8_0")
