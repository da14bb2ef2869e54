"""Scores of cross-encoders, against what llama-server gave for the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxserver.api.rerank import rerank_prompt
from mlxserver.engine.embedder import Embedder
from mlxserver.engine.plan import Embed
from mlxserver.models.classifier import Classifier
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.model import Model
from tests.models import encoder_files, gguf_files
from tests.models.embedding_texts import DOCUMENTS, QUERY
from tests.models.recorded_embeddings import RECORD

HEADS = ("", "dense", "out", "dense out")


def scores(model: Model) -> list[float]:
    prompts = [rerank_prompt(model, QUERY, document) for document in DOCUMENTS]
    rows = [Embed(n, n, prompt, 0, True, -1) for n, prompt in enumerate(prompts)]
    embedder = Embedder(model, "rank")
    return [found.vectors[0][0] for found in embedder.read(rows, embedder.launch(rows))]


@pytest.mark.parametrize("head", HEADS)
def test_a_gguf_file_with_a_head_gives_what_llama_server_gives(tmp_path: Path, head: str) -> None:
    model, _ = load_model(ModelSource(path=str(encoder_files.write_tiny(tmp_path / "m.gguf", head=head))))
    np.testing.assert_allclose(scores(model), RECORD["scores"][head], atol=2e-2)


@pytest.mark.parametrize("head", ["out", "dense out"])
def test_a_folder_with_a_head_gives_the_same(tmp_path: Path, head: str) -> None:
    model, _ = load_model(ModelSource(path=str(encoder_files.write_tiny_folder(tmp_path / "m", head=head))))
    assert model.info.pooling == "rank"
    np.testing.assert_allclose(scores(model), RECORD["scores"][head], atol=2e-2)


def test_the_pooler_of_a_plain_bert_is_no_head(tmp_path: Path) -> None:
    folder = encoder_files.write_tiny_folder(tmp_path / "m", head="dense out")
    encoder_files.write_json(folder / "config.json", encoder_files.tiny_config())
    model, _ = load_model(ModelSource(path=str(folder)))
    assert model.classifier is None and model.info.pooling == ""


def test_qwen3_rerankers_share_one_between_their_answers(tmp_path: Path) -> None:
    head = np.random.default_rng(0).normal(0, 0.5, (2, 32)).astype(np.float32)
    kind = replace(gguf_files.KINDS["qwen3"], keys={"pooling_type": 4}, extra={"cls.output.weight": head})
    module = gguf_files.write(tmp_path / "m.gguf", kind)
    model, _ = load_model(ModelSource(path=str(tmp_path / "m.gguf")))
    assert model.info.pooling == "rank" and model.classifier.reads_last
    prompt = rerank_prompt(model, QUERY, DOCUMENTS[0])
    hidden = module.model(mx.array([prompt]))[0, -1]
    assert scores(model)[0] == pytest.approx(mx.softmax(mx.array(head) @ hidden)[0].item(), abs=1e-5)


def test_scores_of_all_labels() -> None:
    weights = {"out_proj.weight": mx.eye(3), "out_proj.bias": mx.array([1.0, 0.0, 0.0])}
    assert Classifier(weights)(mx.array([[1.0, 2.0, 3.0]])).tolist() == [[2.0, 2.0, 3.0]]
