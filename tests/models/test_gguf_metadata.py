from __future__ import annotations

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.metadata import Hyperparameters, apply_overrides


def keys(**values: object) -> Hyperparameters:
    return Hyperparameters("llama", {f"llama.{key}": value for key, value in values.items()})


def test_counts_numbers_and_texts() -> None:
    kv = keys(n=3, x=0.5, t="yarn", same=[4, 4], mixed=[4, 5], big=2**31, zero=0, nan=float("nan"))
    assert (kv.count("n"), kv.number("x"), kv.number("n"), kv.text("t", "")) == (3, 0.5, 3.0, "yarn")
    assert (kv.count("none", 7), kv.number("none", 1.5), kv.text("none", "linear")) == (7, 1.5, "linear")
    assert kv.count("same") == 4
    for key in ("mixed", "big", "zero", "t", "x", "none"):
        with pytest.raises(ModelError, match=f"llama.{key}"):
            kv.count(key)
    for key in ("nan", "t", "none"):
        with pytest.raises(ModelError, match=f"llama.{key}"):
            kv.number(key)
    with pytest.raises(ModelError, match="llama.n is '3', not a text"):
        kv.text("n", "")


def test_overrides() -> None:
    metadata = {"a": 1, "b": 2.0, "c": True, "d": "x", "tokens": ["a"]}
    entries = ["a=int:-5", "b=float:1e3", "c=bool:false", "d=str:y:z=w", "new=int:7"]
    assert apply_overrides(metadata, entries) == []
    assert metadata == {"a": -5, "b": 1000.0, "c": False, "d": "y:z=w", "tokens": ["a"], "new": 7}


def test_an_override_of_another_type_is_left_out() -> None:
    metadata = {"a": 1, "c": True, "tokens": ["a"]}
    notes = apply_overrides(metadata, ["a=float:1", "c=int:1", "tokens=str:x"])
    assert metadata == {"a": 1, "c": True, "tokens": ["a"]}
    assert notes == [
        "override of a ignored: it is int in the file, not float",
        "override of c ignored: it is bool in the file, not int",
        "override of tokens ignored: it is an array in the file, not str",
    ]


@pytest.mark.parametrize(
    "entry", ["", "a", "a=1", "a=int", "a=long:1", "a=bool:yes", "a=int:x", f"{'k' * 128}=int:1"]
)
def test_malformed_overrides(entry: str) -> None:
    with pytest.raises(ModelError, match="malformed KV override"):
        apply_overrides({}, [entry])
