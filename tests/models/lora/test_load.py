"""Adapters of every format give what their own tools say they give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from mlx.utils import tree_map
from mlx_lm.tuner.utils import load_adapters

from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.lora.adapter import Adapter, AdapterError
from mlxserver.models.lora.load import load_adapter
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.model import Model
from tests.models import gguf_files, tiny, tiny_folder
from tests.models.gguf_files import KINDS, logits
from tests.models.lora.adapters import (
    Matrices,
    as_model,
    gguf_tensors,
    matrices,
    write_gguf,
    write_mlx,
    write_peft,
)

GGUF_KINDS = ["llama", "llama-tied", "mixtral", "smollm3", "granite", "qwen2", "qwen3", "qwen3moe"]
GGUF_KINDS += ["qwen2moe", "gemma", "gemma3", "phi3", "gpt-oss"]
Q_PROJ = "model.layers.0.self_attn.q_proj"


def base_from_gguf(path: Path, name: str, module: nn.Module | None = None) -> Model:
    gguf_files.write(path / f"{name}.gguf", KINDS[name], module=module)
    return load_model(ModelSource(path=str(path / f"{name}.gguf")), dtype="float32")[0]


def merge(module: nn.Module, made: Matrices, scale: float) -> None:
    """The weights that the low-rank products stand for, added to the model's own."""
    layers = dict(module.named_modules())
    for path, (a, b) in made.items():
        change = a @ b if "embed" in path else (a @ b).swapaxes(-1, -2)
        layers[path].weight = layers[path].weight + scale * change


def with_adapter(model: Model, adapter: Adapter, scale: float = 1.0) -> mx.array:
    loaded = LoadedAdapters(model.module)
    loaded.add(adapter)
    loaded.use([((adapter.digest, scale),)])
    result = logits(model.module)
    loaded.remove(adapter.digest)
    return result


def assert_same(found: mx.array, wanted: mx.array) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("name", GGUF_KINDS)
def test_a_gguf_adapter_is_what_was_merged_into_the_weights(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    module = kind.build()
    made = matrices(module, seed=3, rank=4)
    if "lm_head" not in module:  # merged, it would change the head that is tied to it
        del made["model.embed_tokens"]
    file = write_gguf(tmp_path / "lora.gguf", gguf_tensors(kind, module, made), kind.arch)
    model = base_from_gguf(tmp_path, name)
    adapter = load_adapter(str(file), model)
    assert {path: part.scale for path, part in adapter.parts.items()} == dict.fromkeys(made, 2.0)
    for path, (a, b) in made.items():
        assert mx.array_equal(adapter.parts[path].a, a) and mx.array_equal(adapter.parts[path].b, b), path
    found = with_adapter(model, adapter, -0.25)
    merge(module, made, 2.0 * -0.25)
    assert_same(found, logits(module))


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0])
def test_gguf_types_of_matrices(kind: Type, tmp_path: Path) -> None:
    module = tiny.llama(hidden_size=64, intermediate_size=64)
    made = matrices(module, seed=3, rank=32, paths=["model.layers.1.mlp.up_proj"])
    tensors = gguf_tensors(KINDS["llama"], module, made)
    file = write_gguf(tmp_path / "lora.gguf", tensors, quantize=kind)
    part = load_adapter(str(file), as_model(module)).parts["model.layers.1.mlp.up_proj"]
    a, b = made["model.layers.1.mlp.up_proj"]
    error = {Type.Q8_0: 0.01, Type.Q4_0: 0.1}.get(kind, 0.005)
    assert part.a.dtype == mx.float32
    assert 0 < mx.abs(part.a - a).max().item() / mx.abs(a).max().item() < error
    assert 0 < mx.abs(part.b - b).max().item() / mx.abs(b).max().item() < error


def test_alpha_zero_is_no_division_by_the_rank(tmp_path: Path) -> None:
    """As in llama.cpp, which also takes a missing alpha for zero."""
    module = tiny.llama()
    tensors = gguf_tensors(KINDS["llama"], module, matrices(module, 1, 4, [Q_PROJ]))
    for alpha, scale in ((0.0, 1.0), (None, 1.0), (-3.0, -0.75)):
        file = write_gguf(tmp_path / "lora.gguf", tensors, adapter__lora__alpha=alpha)
        assert load_adapter(str(file), as_model(module)).parts[Q_PROJ].scale == scale


def test_the_facts_of_a_gguf_adapter(tmp_path: Path) -> None:
    module = tiny.llama()
    tensors = gguf_tensors(KINDS["llama"], module, matrices(module, 1, 4, [Q_PROJ]))
    norm = {"blk.0.attn_norm.weight": np.ones(32, np.float32)}
    file = write_gguf(
        tmp_path / "lora.gguf",
        {**tensors, **norm},
        adapter__lora__task_name="classify",
        adapter__lora__prompt_prefix="Say:",
        adapter__alora__invocation_tokens=[7, 9],
    )
    adapter = load_adapter(str(file), as_model(module))
    assert (adapter.path, adapter.task_name, adapter.prompt_prefix) == (str(file), "classify", "Say:")
    assert adapter.invocation == (7, 9)
    assert adapter.notes == ("norm vectors are not applied: 'blk.0.attn_norm.weight' and others",)
    assert adapter.n_bytes == 4 * 4 * (32 + 32)


def test_a_gguf_adapter_for_a_base_from_an_mlx_folder(tmp_path: Path) -> None:
    module = tiny.llama()
    made = matrices(module, seed=3, rank=4)
    file = write_gguf(tmp_path / "lora.gguf", gguf_tensors(KINDS["llama"], module, made))
    tiny_folder.write(tmp_path / "mlx", module, model_type="mistral")  # mlx-lm's class is llama's
    model, _ = load_model(ModelSource(path=str(tmp_path / "mlx")), dtype="float32")
    adapter = load_adapter(str(file), model)
    merge(module, made, 2.0)
    assert_same(with_adapter(model, adapter), logits(module))


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3moe", "gemma3"])
def test_an_mlx_folder_gives_what_mlx_lm_gives(name: str, tmp_path: Path) -> None:
    """On the same base from a GGUF file; of tied embeddings the head has the product too."""
    module = KINDS[name].build()
    rank = 4
    made = matrices(module, seed=3, rank=rank)
    folder = write_mlx(
        tmp_path / "lora",
        made,
        scale=0.75,
        num_layers=module.args.num_hidden_layers,
        lora_parameters={"rank": rank, "scale": 0.75, "dropout": 0.0, "keys": [*made]},
    )
    model = base_from_gguf(tmp_path, name)
    adapter = load_adapter(str(folder), model)
    assert {*adapter.parts} == {*made}
    found = with_adapter(model, adapter)
    load_adapters(module, str(folder))
    assert_same(found, logits(module))
    assert not mx.allclose(found, logits(model.module), atol=1e-2)


def test_a_peft_folder_is_what_was_merged_into_the_weights(tmp_path: Path) -> None:
    """The head that is tied to an embedding is left alone by PEFT."""
    module = tiny.qwen3()
    made = matrices(module, seed=3, rank=4)
    folder = write_peft(tmp_path / "lora", made)
    model = base_from_gguf(tmp_path, "qwen3", tiny.qwen3())
    adapter = load_adapter(str(folder), model)
    assert {*adapter.parts} == {*made}
    found = with_adapter(model, adapter)
    head = module.model.embed_tokens.weight
    merge(module, made, 2.0)
    module.tie_word_embeddings = False
    module.args.tie_word_embeddings = False
    module.lm_head = nn.Linear(32, 256, bias=False)
    module.lm_head.weight = head
    assert_same(found, logits(module))


def test_ranks_and_alphas_of_peft_patterns(tmp_path: Path) -> None:
    module = tiny.llama()
    v_proj, up_proj = "model.layers.1.self_attn.v_proj", "model.layers.1.mlp.up_proj"
    made = matrices(module, 1, 4, [Q_PROJ, up_proj]) | matrices(module, 1, 2, [v_proj])
    settings: dict[str, Any] = {
        "lora_alpha": 6,
        "rank_pattern": {"v_proj": 2},
        "alpha_pattern": {"^model\\.layers\\.\\d+\\.self_attn.v_proj$": 5, "mlp.up_proj": 1.5},
    }
    folder = write_peft(tmp_path / "lora", made, **settings)
    parts = load_adapter(str(folder), as_model(module)).parts
    assert {path: part.scale for path, part in parts.items()} == {Q_PROJ: 1.5, v_proj: 2.5, up_proj: 0.375}
    folder = write_peft(tmp_path / "lora", made, use_rslora=True, **settings)
    parts = load_adapter(str(folder), as_model(module)).parts
    scales = {Q_PROJ: 3.0, v_proj: 5 / 2**0.5, up_proj: 0.75}
    assert {path: part.scale for path, part in parts.items()} == pytest.approx(scales)


def test_a_peft_folder_with_invocation_tokens(tmp_path: Path) -> None:
    module = tiny.llama()
    folder = write_peft(tmp_path / "lora", matrices(module, 1, 4, [Q_PROJ]), alora_invocation_tokens=[1, 2])
    assert load_adapter(str(folder), as_model(module)).invocation == (1, 2)


def test_the_digest_is_of_what_changes_results_only(tmp_path: Path) -> None:
    module = tiny.llama()
    made = matrices(module, 1, 4, [Q_PROJ])
    tensors = gguf_tensors(KINDS["llama"], module, made)

    def digest(path: Path) -> str:
        return load_adapter(str(path), as_model(module)).digest

    file = digest(write_gguf(tmp_path / "a.gguf", tensors))
    assert digest(write_gguf(tmp_path / "b.gguf", tensors, adapter__lora__task_name="x")) == file
    assert digest(write_peft(tmp_path / "peft", made)) == file
    others = [
        digest(write_gguf(tmp_path / "c.gguf", tensors, adapter__lora__alpha=7.0)),
        digest(write_gguf(tmp_path / "d.gguf", tensors, adapter__alora__invocation_tokens=[1])),
        digest(
            write_gguf(tmp_path / "e.gguf", {**tensors, "blk.0.attn_q.weight.lora_b": np.ones((32, 4), "f")})
        ),
        digest(write_peft(tmp_path / "f", matrices(module, 1, 4, ["model.layers.1.self_attn.q_proj"]))),
    ]
    assert len({file, *others}) == 5 and len(file) == 64


def test_parts_have_the_type_that_their_layer_computes_in(tmp_path: Path) -> None:
    module = tiny.llama(hidden_size=64)
    module.update(tree_map(lambda value: value.astype(mx.bfloat16), module.parameters()))
    nn.quantize(module, 32, 4, class_predicate=lambda path, part: path == Q_PROJ)
    made = matrices(module, 1, 4, [Q_PROJ, "model.layers.0.self_attn.k_proj"])
    adapter = load_adapter(str(write_peft(tmp_path / "lora", made)), as_model(module))
    assert {part.a.dtype for part in adapter.parts.values()} == {mx.bfloat16}
    assert adapter.parts[Q_PROJ].a.shape == (64, 4)


REFUSED_GGUF: list[tuple[dict[str, Any], str]] = [
    ({"general__type": "model"}, "expect general.type to be 'adapter', but got: model"),
    ({"general__type": None}, "expect general.type to be 'adapter', but got:$"),
    ({"adapter__type": "control"}, "expect adapter.type to be 'lora', but got: control"),
    ({"arch": "qwen2"}, "model arch and LoRA arch mismatch"),
    ({"arch": "nonsense"}, "model arch and LoRA arch mismatch"),
    ({"adapter__lora__alpha": float("nan")}, "has the scale nan"),
    ({"adapter__lora__alpha": "8"}, "invalid gguf type for adapter.lora.alpha"),
    ({"adapter__lora__task_name": 3}, "invalid gguf type for adapter.lora.task_name"),
    ({"adapter__alora__invocation_tokens": [256]}, "the invocation token 256 is not in the vocabulary"),
    ({"adapter__alora__invocation_tokens": "1"}, "invalid gguf type for adapter.alora.invocation_tokens"),
]


@pytest.mark.parametrize("keys, message", REFUSED_GGUF)
def test_gguf_keys_that_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    module = tiny.llama()
    tensors = gguf_tensors(KINDS["llama"], module, matrices(module, 1, 4, [Q_PROJ]))
    file = write_gguf(tmp_path / "lora.gguf", tensors, **keys)
    with pytest.raises(AdapterError, match=message):
        load_adapter(str(file), as_model(module))


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


A, B = "blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"
REFUSED_TENSORS: list[tuple[dict[str, np.ndarray[Any, Any]], str]] = [
    ({}, "there are no LoRA tensors"),
    ({"blk.0.attn_norm.weight": floats(32)}, "there are no LoRA tensors"),
    ({A: floats(4, 32)}, "LoRA tensor pair for 'blk.0.attn_q.weight' is missing one component"),
    ({A: floats(4, 32), B: floats(32, 4), "x": floats(1)}, "LoRA tensor 'x' has unexpected suffix"),
    ({A: floats(4, 31), B: floats(32, 4)}, "incorrect shape .hint: maybe wrong base model"),
    ({A: floats(4, 32), B: floats(40, 4)}, "incorrect shape"),
    ({A: floats(4, 32), B: floats(33, 4)}, "incorrect shape: 33 rows for 4 heads"),
    ({A: floats(32, 4), B: floats(32, 4)}, "incorrect shape"),
    ({A: floats(4, 32), B: floats(32, 5)}, "incorrect shape"),
    ({A: floats(2, 4, 32), B: floats(32, 4)}, "incorrect shape"),
    ({A: floats(33, 32), B: floats(32, 33)}, "has rank 33, which is more than its layer is wide"),
    ({A: floats(4, 32) * np.nan, B: floats(32, 4)}, "values that are not finite"),
    ({A: floats(4, 32), B: floats(32, 4) * np.inf}, "values that are not finite"),
    ({"blk.7.attn_q.weight.lora_a": floats(4, 32), "blk.7.attn_q.weight.lora_b": floats(32, 4)}, "not exist"),
    ({"blk.0.attn_q.bias.lora_a": floats(4, 32), "blk.0.attn_q.bias.lora_b": floats(32, 4)}, "not exist"),
    (
        {"blk.0.attn_norm.weight.lora_a": floats(1, 1), "blk.0.attn_norm.weight.lora_b": floats(32, 1)},
        "not exist",
    ),
    ({".lora_a": floats(4, 32), ".lora_b": floats(32, 4)}, "not exist"),
]


@pytest.mark.parametrize("tensors, message", REFUSED_TENSORS)
def test_gguf_tensors_that_are_refused(
    tensors: dict[str, np.ndarray[Any, Any]], message: str, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "lora.gguf", tensors)
    with pytest.raises(AdapterError, match=message) as refused:
        load_adapter(str(file), as_model(tiny.llama()))
    assert str(refused.value).startswith(str(file)) and "\n" not in str(refused.value)


def test_values_too_large_for_the_compute_type_are_refused(tmp_path: Path) -> None:
    module = tiny.llama()
    module.update(tree_map(lambda value: value.astype(mx.float16), module.parameters()))
    file = write_gguf(tmp_path / "lora.gguf", {A: floats(4, 32) * 1e6, B: floats(32, 4)})
    with pytest.raises(AdapterError, match="not finite in float16"):
        load_adapter(str(file), as_model(module))


REFUSED_PEFT: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "LOHA"}, "peft_type = 'LOHA' is not supported"),
    ({"use_dora": True}, "use_dora = True is not supported"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out = True is not supported"),
    ({"bias": "all"}, "bias = 'all' is not supported"),
    ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\] is not supported"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
    ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ({"a_key_of_tomorrow": {"x": 1}}, "a_key_of_tomorrow = {'x': 1} is not supported"),
    ({"r": 3}, "the rank 3"),
    ({"r": 0}, "r is 0, not a positive whole number"),
    ({"r": True}, "r is True, not a positive whole number"),
    ({"lora_alpha": None}, "lora_alpha is None, not a number"),
    ({"lora_alpha": float("inf")}, "lora_alpha is inf, not a finite number"),
    ({"lora_alpha": 10**400}, "not a finite number"),
    ({"rank_pattern": [1]}, r"rank_pattern is \[1\], not an object"),
    ({"rank_pattern": {"(a+)+$": 4}}, "the pattern '.a.*' is not supported"),
    ({"alpha_pattern": {"q_proj": "x"}}, "q_proj is 'x', not a number"),
    ({"alora_invocation_tokens": [1.5]}, "not a list of token ids"),
    ({"alora_invocation_tokens": [-1]}, "the invocation token -1 is not in the vocabulary"),
]


@pytest.mark.parametrize("settings, message", REFUSED_PEFT)
def test_peft_settings_that_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    module = tiny.llama()
    folder = write_peft(tmp_path / "lora", matrices(module, 1, 4, [Q_PROJ]), **settings)
    with pytest.raises(AdapterError, match=message):
        load_adapter(str(folder), as_model(module))


@pytest.mark.parametrize(
    "name, message",
    [
        (f"base_model.model.{Q_PROJ}.lora_magnitude_vector.weight", "unexpected suffix"),
        (f"base_model.model.{Q_PROJ}.lora_B.bias", "unexpected suffix"),
        ("base_model.model.lm_head.weight", "unexpected suffix"),
        (f"base_model.model.{Q_PROJ}.lora_embedding_A", "is there under another name too"),
        ("base_model.model.model.layers.5.mlp.up_proj.lora_A.weight", "missing one component"),
    ],
)
def test_peft_tensors_that_are_refused(name: str, message: str, tmp_path: Path) -> None:
    module = tiny.llama()
    made = matrices(module, 1, 4, [Q_PROJ])
    folder = write_peft(tmp_path / "lora", made, more={name: mx.zeros((4, 32))})
    with pytest.raises(AdapterError, match=message):
        load_adapter(str(folder), as_model(module))


def test_a_peft_layer_that_the_model_has_not(tmp_path: Path) -> None:
    made = matrices(tiny.llama(), 1, 4, [Q_PROJ])
    folder = write_peft(tmp_path / "lora", {"model.layers.0.self_attn.qkv": made[Q_PROJ]})
    with pytest.raises(AdapterError, match="does not exist in base model"):
        load_adapter(str(folder), as_model(tiny.llama()))


REFUSED_MLX: list[tuple[dict[str, Any], str]] = [
    ({"fine_tune_type": "dora"}, "fine_tune_type = 'dora' is not supported"),
    ({"fine_tune_type": "full"}, "fine_tune_type = 'full' is not supported"),
    ({"lora_parameters": None}, "scale is None, not a number"),
    ({"lora_parameters": {"rank": 4, "alpha": 8}}, "scale is None, not a number"),
    ({"lora_parameters": {"rank": 5, "scale": 1.0}}, "the rank 5"),
]


@pytest.mark.parametrize("settings, message", REFUSED_MLX)
def test_mlx_settings_that_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    module = tiny.llama()
    folder = write_mlx(tmp_path / "lora", matrices(module, 1, 4, [Q_PROJ]), **settings)
    with pytest.raises(AdapterError, match=message):
        load_adapter(str(folder), as_model(module))


def test_what_is_no_adapter_at_all(tmp_path: Path) -> None:
    model = as_model(tiny.llama())
    (tmp_path / "pickle").mkdir()
    (tmp_path / "pickle" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    (tmp_path / "pickle" / "adapter_model.bin").write_bytes(b"x")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "adapter_config.json").write_text("[" * 100000)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "adapter_config.json").write_text(json.dumps([1]))
    for name, message in {
        "pickle": "adapter_model.bin is not read",
        "text": "not a GGUF file",
        "empty": "not a GGUF file",
        "absent": "no such file",
        "x" * 5000: "name too long",
        "a\0b": "no such file",
        "deep": "no JSON",
        "list": "not a JSON object",
        "": "adapter_config.json: no such file",
    }.items():
        with pytest.raises(AdapterError, match=message):
            load_adapter(str(tmp_path / name) if name else str(tmp_path), model)
    with pytest.raises(AdapterError, match="not a file"):
        load_adapter("/dev/zero", model)


def test_a_file_that_is_larger_than_the_model_explains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxserver.models.lora.load.SMALL", 0)
    model = as_model(tiny.llama())
    with (tmp_path / "large.gguf").open("wb") as file:
        file.truncate(16 * model.info.n_params + 1)
    with pytest.raises(AdapterError, match="more than 1600000 bytes"):
        load_adapter(str(tmp_path / "large.gguf"), model)
