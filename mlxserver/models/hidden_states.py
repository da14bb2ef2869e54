"""The hidden states that embeddings are made of: those after the last norm, before a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from mlxserver.models.errors import ModelError
from mlxserver.models.model import Model

HiddenStates = Callable[[mx.array, mx.array], mx.array]
"""(B, L) tokens padded on the right, (B,) lengths → (B, L, n_embd), of which the padding's are noise."""

_TRUNKS = ("model", "backbone", "transformer")
"""What mlx-lm's classes call the part below the head."""


def hidden_states(model: Model) -> HiddenStates:
    """Raises ModelError for a class whose hidden states cannot be had."""
    if model.is_encoder:
        encoder: HiddenStates = model.module.hidden
        return encoder
    trunk = trunk_of(model)
    # nothing looks ahead in a causal model, so padding on the right changes no text
    return lambda tokens, lengths: trunk(tokens)


def trunk_of(model: Model) -> Any:
    """The part of a causal model below its head: ``trunk(tokens, cache=...)`` gives (B, L, n_embd)."""
    for trunk in trunks(model.module):
        if _gives_hidden(trunk, model.info.n_embd):
            return trunk
    raise ModelError(f"embeddings are not supported for the model type {model.info.architecture!r}")


def trunks(module: Any) -> Iterator[Any]:
    """The parts that may be what is below the head of a causal model."""
    while (inner := getattr(module, "language_model", None)) is not None:
        module = inner
    parts = (getattr(module, name, None) for name in _TRUNKS)
    return (part for part in parts if isinstance(part, Module))


def _gives_hidden(trunk: Any, n_embd: int) -> bool:
    try:
        hidden = trunk(mx.array([[0, 0]]))
    except (TypeError, ValueError, AttributeError):
        return False
    return isinstance(hidden, mx.array) and hidden.shape == (1, 2, n_embd)
