from __future__ import annotations

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.metadata import Hyperparameters


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
