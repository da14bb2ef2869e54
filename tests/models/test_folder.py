from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from tests.models import tiny
from tests.models.gguf_files import logits
from tests.models.tiny_folder import write

N_PARAMS = 31904


def load(path: Path, **options: Any) -> Any:
    return load_model(ModelSource(path=str(path)), **options)


def test_logits_and_facts(tmp_path: Path) -> None:
    original = tiny.llama(max_position_embeddings=512)
    path = write(tmp_path, original)
    (path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 9, "do_sample": true}')
    model, notes = load(path, dtype="float32")
    assert notes == []
    assert mx.array_equal(logits(model.module), logits(original))
    info = model.info
    assert (info.path, info.architecture, info.ftype) == (str(path), "llama", "all F32")
    assert (info.n_vocab, info.n_ctx_train, info.n_embd) == (256, 512, 32)
    assert (info.n_params, info.size) == (N_PARAMS, 4 * N_PARAMS)
    assert (info.eos_text, info.chat_template) == ("<|end|>", "{{ messages }}")
    assert info.sampling_defaults == {"temperature": 0.6, "top_k": 9}


@pytest.mark.parametrize(
    ("kind", "config", "n_ctx"),
    [
        ("mamba2", {}, 2**20),
        ("llama", {}, 2**20),
        ("llama", {"max_position_embeddings": 300}, 300),
        ("gemma3", {}, 32768),
    ],
)
def test_a_model_that_names_no_context_length_has_one(
    tmp_path: Path, kind: str, config: dict[str, int], n_ctx: int
) -> None:
    """It had none, and its server refused every prompt as too long."""
    path = write(tmp_path, tiny.ALL[kind](), **config)
    settings = json.loads((path / "config.json").read_text())
    if not config:
        settings.pop("max_position_embeddings", None)
        (path / "config.json").write_text(json.dumps(settings))
    assert load(path)[0].info.n_ctx_train == n_ctx


def test_sixteen_bit_weights(tmp_path: Path) -> None:
    original = tiny.llama()
    original.set_dtype(mx.bfloat16)
    model, _ = load(write(tmp_path, original), dtype="float32")
    assert model.info.ftype == "all F32"
    assert {value.dtype for _, value in tree_flatten(model.module.parameters())} == {mx.float32}
    model, _ = load(tmp_path, dtype="bfloat16")
    assert (model.info.ftype, model.info.size) == ("BF16", 2 * N_PARAMS)


def test_quantised_weights_kept_and_dequantised(tmp_path: Path) -> None:
    original = tiny.llama(intermediate_size=64, hidden_size=64)
    n_params = sum(value.size for _, value in tree_flatten(original.parameters()))
    nn.quantize(original, group_size=32, bits=4)
    path = write(tmp_path, original, quantization={"group_size": 32, "bits": 4})
    kept, notes = load(path, dtype="float32", weights="keep")
    assert notes == []
    assert (kept.info.ftype, kept.info.n_params) == ("MLX 4-bit", n_params)
    assert mx.array_equal(logits(kept.module), logits(original))
    dense, notes = load(path, dtype="float32", weights="dequantize")
    assert notes == ["16 quantised matrices are dequantised to float32"]
    assert (dense.info.ftype, dense.info.n_params, dense.info.size) == ("all F32", n_params, 4 * n_params)
    assert mx.allclose(logits(dense.module), logits(kept.module), atol=1e-4)


def test_a_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, tiny.llama(), model_file="model.py")
    (path / "model.py").write_text("raise SystemExit('code of the model was run')")
    with pytest.raises(ModelError, match="brings its own code .model.py., which is not run"):
        load(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"{", "config.json"),
        ("config.json", b"[1]", "not a JSON object"),
        ("config.json", b'{"model_type": "nothing"}', "nothing not supported"),
        ("config.json", b'{"model_type": "llama"}', "missing"),
        ("model.safetensors", None, "No safetensors found"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}", "."),
        ("generation_config.json", b"[]", "not a JSON object"),
        ("tokenizer_config.json", b"{", "."),
    ],
)
def test_damaged_folders(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, tiny.llama())
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_truncated_weights(tmp_path: Path) -> None:
    path = write(tmp_path, tiny.llama())
    weights = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError):
        load(path)


def test_overrides_are_for_gguf_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="GGUF files only"):
        load(write(tmp_path, tiny.llama()), override_kv=["a=int:1"])
