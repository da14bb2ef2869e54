from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from tests.models import gguf_files
from tests.models.gguf_files import KINDS, logits


def load(path: Path, **options: object):
    return load_model(ModelSource(path=str(path)), **options)


@pytest.mark.parametrize("name", KINDS)
def test_logits_of_the_loaded_model_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    original = gguf_files.write(tmp_path / "model.gguf", KINDS[name])
    model, notes = load(tmp_path / "model.gguf", dtype="float32")
    assert notes == []
    if name == "gpt-oss":  # the same YaRN by another formula
        assert mx.allclose(logits(model.module), logits(original), rtol=1e-4, atol=1e-4)
    else:
        assert mx.array_equal(logits(model.module), logits(original))


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3", "qwen2moe", "gpt-oss"])
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4])
def test_kept_and_dequantized_weights_give_the_same_logits(name: str, kind: Type, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS[name], kind)
    kept, kept_notes = load(tmp_path / "model.gguf", dtype="float32", weights="keep")
    dense, dense_notes = load(tmp_path / "model.gguf", dtype="float32", weights="dequantize")
    assert kept_notes and "stay quantised" in kept_notes[0]
    assert dense_notes and "dequantised to float32" in dense_notes[0]
    assert kept.info.size < dense.info.size
    assert kept.info.n_params == dense.info.n_params
    assert (kept.info.ftype, dense.info.ftype) == ("all F32", "all F32")
    difference = mx.abs(logits(kept.module) - logits(dense.module)).max().item()
    assert difference < 1e-3, difference


def test_facts_of_the_model(tmp_path: Path) -> None:
    original = gguf_files.write(tmp_path / "model.gguf", KINDS["llama-tied"])
    model, _ = load(tmp_path / "model.gguf", dtype="float32")
    info = model.info
    assert info.path == str(tmp_path / "model.gguf")
    assert (info.architecture, info.n_vocab, info.n_ctx_train, info.n_embd) == ("llama", 256, 512, 32)
    assert info.n_params == sum(value.size for _, value in gguf_files.tree_flatten(original.parameters()))
    assert info.size == 4 * info.n_params
    assert info.ftype == "all F32"
    assert (info.bos_text, info.eos_text) == ("<|end|>", "<|end|>")
    assert info.chat_template == "{{ messages }}"
    assert info.sampling_defaults == {"temperature": 0.3, "top_k": 7, "samplers": ("top_k", "temperature")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compute_dtype(dtype: str, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    model, _ = load(tmp_path / "model.gguf", dtype=dtype)
    assert logits(model.module).dtype == getattr(mx, dtype)
    assert model.info.ftype == {"float16": "F16", "bfloat16": "BF16"}[dtype]


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16])
def test_sixteen_bit_files_load_exactly(kind: Type, tmp_path: Path) -> None:
    original = gguf_files.write(tmp_path / "model.gguf", KINDS["llama"], kind)
    model, _ = load(tmp_path / "model.gguf", dtype="float32")
    stored = {Type.F16: mx.float16, Type.BF16: mx.bfloat16}[kind]
    weight = original.model.layers[0].mlp.up_proj.weight.astype(stored).astype(mx.float32)
    assert mx.array_equal(model.module.model.layers[0].mlp.up_proj.weight, weight)


@pytest.mark.skipif(mx.metal.is_available(), reason="the limit is the CPU backend's")
def test_experts_on_the_cpu_need_float32(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["mixtral"])
    with pytest.raises(ModelError, match="float32 only"):
        load(tmp_path / "model.gguf", dtype="float16")


def test_overrides_reach_the_model(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    overrides = [
        "llama.context_length=int:99",
        "tokenizer.ggml.bos_token_id=int:7",
        "tokenizer.ggml.add_bos_token=bool:true",
        "llama.block_count=str:x",
        "llama.vocab_size=int:7",
    ]
    model, notes = load(tmp_path / "model.gguf", override_kv=overrides)
    assert model.info.n_ctx_train == 99
    assert (model.tokenizer.bos_id, model.tokenizer.add_bos) == (7, True)
    assert model.tokenizer.encode("a", add_special=True)[0] == 7
    assert notes == [
        "override of llama.block_count ignored: it is int, not str",
        "override of llama.vocab_size has no effect: nothing reads it",
    ]


def test_the_template_and_the_sampling_defaults_are_the_files_own(tmp_path: Path) -> None:
    """As in llama.cpp, which reads both past the overrides."""
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    overrides = ["tokenizer.chat_template=str:x", "general.sampling.temp=float:0.5"]
    model, notes = load(tmp_path / "model.gguf", override_kv=overrides)
    assert model.info.chat_template == "{{ messages }}"
    assert model.info.sampling_defaults["temperature"] == 0.3
    assert [note.partition(":")[0] for note in notes] == [
        "override of tokenizer.chat_template has no effect",
        "override of general.sampling.temp has no effect",
    ]


def test_unknown_architecture_names_itself_and_the_known_ones(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    with pytest.raises(ModelError, match="'mamba' is not supported .known: .*gpt-oss.*qwen3moe.*smollm3"):
        load(tmp_path / "model.gguf", override_kv=["general.architecture=str:mamba"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("llama.block_count=int:1000000000", "1000000000 layers are announced, the tensors are of 2"),
        ("llama.block_count=int:1", "1 layers are announced"),
        ("llama.block_count=int:0", "not a positive whole number"),
        ("llama.embedding_length=int:64", "is wanted"),
        ("llama.attention.head_count=int:3", "6 rows for 3 heads|rows for 3 heads|is wanted"),
        ("llama.rope.scaling.factor=float:nan", "not a number"),
        ("llama.rope.dimension_count=int:4", "4 rotary dimensions for heads of 8"),
        ("llama.embedding_length=int:2147483647", "is wanted|describe no"),
        ("llama.feed_forward_length=int:2147483647", "is wanted|describe no"),
        ("llama.attention.head_count=int:2147483647", "rows for|is wanted|describe no|rotary"),
        ("llama.attention.key_length=int:2147483647", "is wanted|describe no|rotary"),
    ],
)
def test_metadata_that_contradict_the_tensors(override: str, message: str, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "model.gguf", override_kv=[override])


def test_unknown_rope_scaling_is_refused(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["qwen3moe"])
    with pytest.raises(ModelError, match="the rope scaling 'dynamic'"):
        load(tmp_path / "model.gguf", override_kv=["qwen3moe.rope.scaling.type=str:dynamic"])


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight", "no place for the tensor 'blk.1.ffn_uq.weight'"),
        (b"blk.1.ffn_up.weight", b"blk-1.ffn_up.weight", "no place for the tensor 'blk-1.ffn_up.weight'"),
        (b"blk.1.ffn_up.weight", b"blk.1_ffn_up.weight", "layers are announced"),
        (b"output_norm.weight", b"rope_factors_long.", "no place for the tensor"),
        (b"token_embd.weight", b"token_embx.weight", "there is no token embedding"),
    ],
)
def test_tensors_without_a_place(name: bytes, other: bytes, message: str, tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    content = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(content.replace(name, other))
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "model.gguf")


def test_a_place_without_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = gguf_files.tensors

    def all_but_one(*args: object) -> list[object]:
        return [entry for entry in everything(*args) if entry[0] != "blk.1.attn_k.weight"]

    monkeypatch.setattr(gguf_files, "tensors", all_but_one)
    gguf_files.write(tmp_path / "model.gguf", KINDS["llama"])
    with pytest.raises(ModelError, match="Missing 1 parameters: model.layers.1.self_attn.k_proj.weight"):
        load(tmp_path / "model.gguf")


def test_broken_files_give_one_clear_line(tmp_path: Path) -> None:
    """Truncations and flipped bits: a model error or a model, never anything else."""
    gguf_files.write(tmp_path / "whole.gguf", KINDS["llama"])
    content = (tmp_path / "whole.gguf").read_bytes()
    random = np.random.default_rng(1)
    outcomes = {"loaded": 0, "refused": 0}
    for round_ in range(150):
        broken = bytearray(content)
        if round_ % 3 == 0:
            del broken[random.integers(len(broken)) :]
        else:
            # The header is where damage is interesting; the rest are weights.
            for at in random.integers(0, 12000, random.integers(1, 4)):
                broken[at] ^= 1 << random.integers(8)
        (tmp_path / "model.gguf").write_bytes(broken)
        try:
            load(tmp_path / "model.gguf")
            outcomes["loaded"] += 1
        except ModelError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 10, outcomes


@pytest.mark.real_model
def test_smollm2(smollm2: Path) -> None:
    model, _ = load(smollm2, dtype="float32", weights="dequantize")
    info = model.info
    assert (info.n_vocab, info.n_ctx_train, info.n_embd) == (49152, 8192, 576)
    assert (info.n_params, info.size, info.ftype) == (134515008, 538060032, "all F32")
    assert (info.bos_text, info.eos_text) == ("<|im_start|>", "<|im_end|>")
    # Greedy continuation of "The capital of France is", as llama-server gives it.
    tokens = model.tokenizer.encode("The capital of France is")
    for _ in range(2):
        tokens.append(int(model.module(mx.array([tokens]))[0, -1].argmax().item()))
    assert model.tokenizer.decode(tokens) == b"The capital of France is Paris."
