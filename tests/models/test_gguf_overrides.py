from __future__ import annotations

from typing import Any

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.overrides import OverriddenMetadata


def test_values_take_the_place_of_the_files_own() -> None:
    file = {"a": 1, "b": 2.0, "c": True, "d": "x", "tokens": ["a"]}
    entries = ["a=int:-5", "b=float:1e3", "c=bool:false", "d=str:y:z=w", "new=int:7"]
    metadata = OverriddenMetadata(file, entries)
    read = {key: metadata[key] for key in (*file, "new")}
    assert read == {"a": -5, "b": 1000.0, "c": False, "d": "y:z=w", "tokens": ["a"], "new": 7}
    assert metadata.notes == []
    assert file["a"] == 1


def test_one_of_another_type_is_left_out() -> None:
    file = {"a": 1, "c": True, "tokens": ["a"]}
    metadata = OverriddenMetadata(file, ["a=float:1", "c=int:1", "tokens=str:x"])
    assert metadata == file
    assert metadata.notes == [
        "override of a ignored: it is int, not float",
        "override of c ignored: it is bool, not int",
        "override of tokens ignored: it is an array, not str",
    ]


@pytest.mark.parametrize(
    ("key", "wrong", "right"),
    [
        ("llama.rope.freq_base", "int:5000", "float:5000"),
        ("llama.rope.scaling.factor", "int:4", "float:4"),
        ("llama.attention.layer_norm_rms_epsilon", "int:0", "float:0"),
        ("llama.rope.scaling.type", "int:1", "str:yarn"),
        ("llama.rope.scaling.original_context_length", "float:512", "int:512"),
        ("tokenizer.ggml.add_bos_token", "int:1", "bool:true"),
        ("tokenizer.ggml.bos_token_id", "str:1", "int:1"),
    ],
)
def test_the_type_of_a_key_that_the_file_has_not_got(key: str, wrong: str, right: str) -> None:
    metadata = OverriddenMetadata({}, [f"{key}={wrong}"])
    assert key not in metadata
    assert metadata.notes == [
        f"override of {key} ignored: it is {right.partition(':')[0]}, not {wrong.partition(':')[0]}"
    ]
    assert key in OverriddenMetadata({}, [f"{key}={right}"])


def test_the_first_of_two_counts() -> None:
    metadata = OverriddenMetadata({"a": 1}, ["a=int:2", "a=int:3"])
    assert metadata["a"] == 2
    assert metadata.notes == ["override of a ignored: an earlier one counts"]


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "general.sampling.temp"])
def test_what_llama_cpp_reads_from_the_file_alone(key: str) -> None:
    value: Any = "x"
    metadata = OverriddenMetadata({key: value}, [f"{key}=str:y"])
    assert metadata[key] == "x"
    assert metadata.notes == [f"override of {key} has no effect: it is read from the file only"]


def test_one_that_nothing_reads_is_named() -> None:
    metadata = OverriddenMetadata({}, ["llama.no_such_key=int:1", "llama.block_count=int:2"])
    assert metadata.get("llama.block_count") == 2
    assert metadata.notes == ["override of llama.no_such_key has no effect: nothing reads it"]


@pytest.mark.parametrize(
    "entry", ["", "a", "a=1", "a=int", "a=long:1", "a=bool:yes", "a=int:x", f"{'k' * 128}=int:1"]
)
def test_malformed_ones(entry: str) -> None:
    with pytest.raises(ModelError, match="malformed KV override"):
        OverriddenMetadata({}, [entry])
