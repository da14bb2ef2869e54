from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model, local_path
from tests.models import gguf_files


def test_the_name_is_what_was_asked_for() -> None:
    assert ModelSource(path="a.gguf").name == "a.gguf"
    assert ModelSource(hf_repo="user/repo:Q8_0").name == "user/repo:Q8_0"


def test_a_source_without_a_model() -> None:
    with pytest.raises(ModelError, match="no model was named"):
        load_model(ModelSource())


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        load_model(ModelSource(path=str(tmp_path / "none.gguf")))


def test_an_unknown_dtype(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", gguf_files.KINDS["llama"])
    with pytest.raises(ModelError, match="unknown dtype 'int8' .known: auto, float32, float16, bfloat16."):
        load_model(ModelSource(path=str(tmp_path / "m.gguf")), dtype="int8")


def test_a_model_of_the_hub(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--user--repo" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    gguf_files.write(snapshot / "m-Q8_0.gguf", gguf_files.KINDS["llama"])
    source = ModelSource(hf_repo="user/repo", offline=True, hf_cache=str(tmp_path))
    assert local_path(source) == snapshot / "m-Q8_0.gguf"
    model, _ = load_model(source)
    assert model.info.path == "user/repo"
