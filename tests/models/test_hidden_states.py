from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.hidden_states import hidden_states, trunk_of
from mlxserver.models.model import Model, ModelInfo
from tests.models import tiny


def model_of(module: Any) -> Model:
    info = ModelInfo("tiny", "tiny", tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32")
    return Model(module, tokenizer=None, info=info)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", tiny.ALL)
def test_padding_on_the_right_changes_no_causal_model(kind: str) -> None:
    hidden = hidden_states(model_of(tiny.ALL[kind]()))
    alone = hidden(mx.array([[5, 17, 200]]), mx.array([3]))
    padded = hidden(mx.array([[5, 17, 200, 0, 0], [1, 2, 3, 4, 5]]), mx.array([3, 5]))
    assert alone.shape == (1, 3, tiny.HIDDEN)
    np.testing.assert_allclose(np.array(padded[:1, :3]), np.array(alone), atol=2e-4)


def test_they_are_what_the_head_reads() -> None:
    module = tiny.llama()
    tokens = mx.array([[5, 17, 200]])
    logits = module.lm_head(trunk_of(model_of(module))(tokens))
    np.testing.assert_array_equal(np.array(logits), np.array(module(tokens)))


def test_a_model_within_another() -> None:
    inner = tiny.llama()
    assert trunk_of(model_of(SimpleNamespace(language_model=inner))) is inner.model


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 4)


def test_a_class_that_hides_them_is_named() -> None:
    with pytest.raises(ModelError, match="embeddings are not supported for the model type 'tiny'"):
        trunk_of(model_of(Odd()))
