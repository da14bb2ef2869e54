"""Fits a model of mlx-lm for passes whose tokens belong to several sequences, each a row of the batch.

The cache of such a pass carries out the attention (``attend``) and tells of how many rows logits are made
(``n_read``). With any other cache the model does what it did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from mlxserver.models.hidden_states import trunks

NAME = "scaled_dot_product_attention"
"""What mlx-lm's models call, in their own Python module, with the layer's cache."""


def fit_for_ragged_passes(module: Any) -> None:
    """A model that calls something else, or has no trunk of a known name, is as it was."""
    for owner in {sys.modules[type(part).__module__] for part in module.modules()}:
        attention = getattr(owner, NAME, None)
        if attention is not None and not hasattr(attention, "__wrapped__"):
            setattr(owner, NAME, _asking(attention))
    for trunk in trunks(module):
        if not isinstance(trunk, _ReadsFew):
            base: Any = type(trunk)
            trunk.__class__ = _reads_few(base)
        break


def _asking(attention: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(attention)
    def ask(queries: Any, keys: Any, values: Any, cache: Any, *args: Any, **fields: Any) -> Any:
        attend = getattr(cache, "attend", None)
        if attend is None:
            return attention(queries, keys, values, cache, *args, **fields)
        return attend(attention, queries, *args, **fields)

    return ask


class _ReadsFew:
    """A trunk that gives hidden states for as many rows as are read of its first layer's cache."""

    def __call__(self, *args: Any, **fields: Any) -> Any:
        hidden = super().__call__(*args, **fields)  # type: ignore[misc]
        caches = [arg for arg in (*args, *fields.values()) if isinstance(arg, list) and arg]
        n_read = getattr(caches[0][0], "n_read", None) if caches else None
        return hidden if n_read is None else hidden[:n_read]


@cache
def _reads_few(base: Any) -> Any:
    return type(base.__name__, (_ReadsFew, base), {})
