"""Encoders from both kinds of files, against what llama-server gave for the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import MODEL_ARCH

from mlxserver.engine.embedder import Embedder
from mlxserver.engine.plan import Embed
from mlxserver.models.encoders.bert import Model as Encoder
from mlxserver.models.encoders.bert import ModelArgs
from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.model import Model
from tests.models import encoder_files
from tests.models.embedding_texts import TEXTS, TINY_TEXTS
from tests.models.recorded_embeddings import RECORD, Vector, cosine, decoded


def load(path: Path, **options: str) -> Model:
    model, notes = load_model(ModelSource(path=str(path)), **options)  # type: ignore[arg-type]
    assert not notes
    return model


def embed(model: Model, texts: Sequence[str], pooling: str) -> list[Vector]:
    rows = [
        Embed(n, n, tuple(model.tokenizer.encode(text, add_special=True)), 0, True, 2)
        for n, text in enumerate(texts)
    ]
    embedder = Embedder(model, pooling)
    return [np.array(found.vectors, np.float32) for found in embedder.read(rows, embedder.launch(rows))]


@pytest.fixture(params=["gguf", "folder"])
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "gguf":
        return load(encoder_files.write_tiny(tmp_path / "tiny.gguf", pooling=1))
    return load(encoder_files.write_tiny_folder(tmp_path / "tiny", pooling="mean_tokens"))


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_a_tiny_bert_gives_what_llama_server_gives(tiny: Model, pooling: str) -> None:
    """In one padded batch; llama-server's activation is an approximation with tables."""
    for text, found in zip(TINY_TEXTS, embed(tiny, TINY_TEXTS, pooling), strict=True):
        np.testing.assert_allclose(found, decoded(RECORD["tiny"][pooling][text]), atol=6e-3)


def test_facts(tiny: Model) -> None:
    info = tiny.info
    assert (info.n_vocab, info.n_ctx_train, info.n_embd) == (len(encoder_files.WORDS), 64, 32)
    assert (info.pooling, info.bos_text, info.eos_text, info.ftype) == ("mean", "[CLS]", "[SEP]", "all F32")
    assert tiny.is_encoder and tiny.classifier is None
    assert info.n_params == sum(v.size for v in encoder_files.tiny_tensors().values())
    tokenizer = tiny.tokenizer
    assert (tokenizer.add_bos, tokenizer.add_eos, tokenizer.add_sep) == (True, True, False)
    tokens = tokenizer.encode("Hello, rises!", add_special=True)
    assert b"".join(map(tokenizer.piece, tokens)) == b"[CLS] hello , rises ![SEP]"


def test_nomic_bert_gives_what_llama_server_gives(tmp_path: Path) -> None:
    model = load(encoder_files.write_tiny(tmp_path / "nomic.gguf", MODEL_ARCH.NOMIC_BERT))
    for text, found in zip(TINY_TEXTS, embed(model, TINY_TEXTS, "mean"), strict=True):
        np.testing.assert_allclose(found, decoded(RECORD["nomic"][text]), atol=6e-3)


def test_padding_changes_nothing(tiny: Model) -> None:
    together = embed(tiny, TINY_TEXTS, "mean")
    for text, found in zip(TINY_TEXTS, together, strict=True):
        np.testing.assert_allclose(found, embed(tiny, [text], "mean")[0], atol=1e-5)


def test_roberta_counts_its_positions_from_behind_the_padding_token(tmp_path: Path) -> None:
    plain = load(encoder_files.write_tiny_folder(tmp_path / "bert"))
    folder = encoder_files.write_tiny_folder(tmp_path / "roberta", model_type="roberta", pad_token_id=1)
    weights = mx.load(str(folder / "model.safetensors"))
    positions = weights["embeddings.position_embeddings.weight"]
    weights["embeddings.position_embeddings.weight"] = mx.concatenate([positions[:2] * 0, positions])
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    moved = load(folder)
    assert moved.info.n_ctx_train == plain.info.n_ctx_train == 64
    np.testing.assert_array_equal(*(embed(model, ["hello world"], "cls")[0] for model in (plain, moved)))


def test_a_quantised_folder(tmp_path: Path) -> None:
    folder = encoder_files.write_tiny_folder(tmp_path / "bert")
    plain = load(folder)
    weights = dict(mx.load(str(folder / "model.safetensors")))
    for name in [
        n for n in weights if n.endswith("weight") and weights[n].shape[-1] == 32 and weights[n].ndim == 2
    ]:
        stem = name.removesuffix(".weight")
        weights[name], weights[f"{stem}.scales"], weights[f"{stem}.biases"] = mx.quantize(
            weights[name], 32, 8
        )
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = encoder_files.tiny_config(quantization={"group_size": 32, "bits": 8})
    encoder_files.write_json(folder / "config.json", config)
    for policy in ("keep", "dequantize"):
        model = load(folder, weights=policy)
        assert model.info.ftype == "MLX 8-bit"
        assert cosine(*(embed(m, ["hello world"], "mean")[0][0] for m in (plain, model))) > 0.99


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = encoder_files.write_tiny_folder(tmp_path / "bert", hidden_act="mish")
    with pytest.raises(ModelError, match="unknown activation 'mish'"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="there are no safetensors"):
        load(folder)
    folder = encoder_files.write_tiny_folder(tmp_path / "other", pooling="mean_tokens")
    (folder / "1_Pooling" / "config.json").write_text("[")
    with pytest.raises(ModelError, match="the description of the pooling cannot be read"):
        load(folder)


def test_heads_must_share_the_dimensions() -> None:
    config = encoder_files.tiny_config(num_attention_heads=5)
    with pytest.raises(ValueError, match="32 dimensions for 5 heads"):
        Encoder(ModelArgs.from_dict(config))


@pytest.mark.real_model
@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_minilm_gives_what_llama_server_gives(minilm: Path, tmp_path: Path, kind: str) -> None:
    path = minilm
    if kind == "gguf":
        path = tmp_path / "minilm.gguf"
        encoder_files.convert_folder(minilm, path)
    model = load(path)
    assert model.info.pooling == "mean"
    for text, found in zip(TEXTS, embed(model, TEXTS, "mean"), strict=True):
        tokens, vector = RECORD["minilm"][text]
        assert model.tokenizer.encode(text, add_special=True) == tokens, text
        assert cosine(found[0], decoded([vector])[0]) > 0.9999, text
