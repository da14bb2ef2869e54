"""The head of a cross-encoder: from the hidden state of one token to scores."""

from __future__ import annotations

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear

Weights = dict[str, mx.array]
"""``dense.weight``, ``dense.bias``, ``out_proj.weight``, ``out_proj.bias``, as far as there are any."""


class Classifier(Module):
    """``dense`` with tanh, then ``out_proj``; a model may have either or both.

    ``reads_last``: of the last token instead of the first. ``softmax``: scores are shares of 1, as
    Qwen3's rerankers want it.
    """

    def __init__(self, weights: Weights, reads_last: bool = False, softmax: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads_last = reads_last
        self._softmax = softmax
        for name in ("dense", "out_proj"):
            if f"{name}.weight" in weights:
                n_out, n_in = weights[f"{name}.weight"].shape
                self[name] = Linear(n_in, n_out, bias=f"{name}.bias" in weights)
        self.load_weights(list(weights.items()))

    def __call__(self, x: mx.array) -> mx.array:
        """(B, n_embd) → (B, n_scores)."""
        if "dense" in self:
            x = mx.tanh(self.dense(x))
        if "out_proj" in self:
            x = self.out_proj(x)
        return mx.softmax(x, axis=-1) if self._softmax else x
