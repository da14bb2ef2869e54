"""From prompts to embeddings or scores: one forward pass for several whole prompts, then pooling."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxserver.engine.plan import Embed, Embedded
from mlxserver.models.caches import cache_maker
from mlxserver.models.errors import ModelError
from mlxserver.models.hidden_states import hidden_states, trunk_of
from mlxserver.models.model import Model

log = logging.getLogger("mlxserver.srv")

Vector = np.ndarray[Any, np.dtype[np.float32]]

INT16_RANGE = 32760.0
"""What normalisation 0 makes of the largest value."""


class Embedder:
    """``pooling``: none (a vector for each token), mean, cls (the first token), last, or rank (scores).

    Raises ModelError where the model's hidden states cannot be had.
    """

    def __init__(self, model: Model, pooling: str) -> None:
        if pooling == "rank":
            _check_rank(model)
        self._hidden = hidden_states(model)
        self._classifier = model.classifier
        self._pooling = pooling
        self._trunk = None if model.is_encoder else trunk_of(model)
        self._make_cache = cache_maker(model.module)
        self._partial: tuple[int, list[Any]] = (-1, [])
        """A prompt that takes several steps: its task, and its caches so far."""

    def launch(self, rows: Sequence[Embed]) -> mx.array:
        """Hand the work to the device. What ``read`` takes: (B, n) pooled, or (B, L, n_embd) for none."""
        first = rows[0]
        if first.start or not first.is_last:
            result = self._continue(first)
        else:
            lengths = mx.array([len(row.tokens) for row in rows])
            result = self._pool(self._hidden(_padded(rows), lengths).astype(mx.float32), lengths)
        mx.async_eval(result)  # type: ignore[no-untyped-call]
        return result

    def read(self, rows: Sequence[Embed], result: mx.array) -> list[Embedded]:
        """Wait for the device; normalise. Pieces of prompts that are not at their end give nothing."""
        values: Vector = np.array(result)
        return [
            Embedded(row.slot, row.task_id, self._vectors(row, value))
            for row, value in zip(rows, values, strict=True)
            if row.is_last
        ]

    def _continue(self, piece: Embed) -> mx.array:
        """A piece of a prompt of which only the last token counts. (1, n_embd)."""
        assert self._trunk is not None
        if piece.start == 0:
            self._partial = piece.task_id, self._make_cache()
        task_id, caches = self._partial
        if task_id != piece.task_id:
            raise ValueError(f"task {piece.task_id} goes on, but task {task_id} was under way")
        hidden = self._trunk(mx.array([piece.tokens]), cache=caches)
        if piece.is_last:
            self._partial = -1, []
        result: mx.array = hidden[:, -1].astype(mx.float32)
        return result

    def _pool(self, hidden: mx.array, lengths: mx.array) -> mx.array:
        if self._pooling == "none":
            return hidden
        if self._pooling == "mean":
            inside = mx.arange(hidden.shape[1])[None] < lengths[:, None]
            return mx.where(inside[..., None], hidden, 0).sum(axis=1) / lengths[:, None]
        reads_last = self._pooling == "last" or (
            self._pooling == "rank" and self._classifier is not None and self._classifier.reads_last
        )
        at = lengths - 1 if reads_last else mx.zeros_like(lengths)
        pooled = mx.take_along_axis(hidden, at[:, None, None], axis=1)[:, 0]
        if self._pooling == "rank" and self._classifier is not None:
            pooled = self._classifier(pooled)
        return pooled

    def _vectors(self, row: Embed, value: Vector) -> tuple[list[float], ...]:
        if self._pooling == "none":
            tokens: list[list[float]] = value[: len(row.tokens)].tolist()
            return tuple(tokens)
        vector: list[float] = normalized(value, row.normalize).tolist()
        return (vector,)


def _check_rank(model: Model) -> None:
    """llama-server's conditions; it gives numbers without a classifier too, and so does this."""
    tokenizer = model.tokenizer
    if tokenizer.bos_id < 0:
        raise ModelError("vocab does not have a BOS token, reranking will not work")
    if tokenizer.eos_id < 0 and tokenizer.sep_id < 0 and not model.info.rerank_template:
        raise ModelError(
            "vocab does not have an EOS token, SEP token, or rerank prompt. Reranking will not work"
        )
    if model.classifier is None:
        log.warning("the model has no classifier: the scores of a reranking have no meaning")


def normalized(vector: Vector, norm: int) -> Vector:
    """Divided by its ``norm``: -1 nothing, 0 the largest value over 32760, else the p-norm of that number.

    A vector whose norm is zero becomes zeros.
    """
    if norm == -1:
        return vector
    sizes = np.abs(vector).astype(np.float64)
    with np.errstate(all="ignore"):  # p below -1 divides by zero where the vector has zeros
        size = sizes.max() / INT16_RANGE if norm == 0 else (sizes**norm).sum() ** (1.0 / norm)
        factor = np.float32(1.0 / size) if size > 0 else np.float32(0.0)
        return vector * factor


def _padded(rows: Sequence[Embed]) -> mx.array:
    longest = max(len(row.tokens) for row in rows)
    return mx.array([[*row.tokens, *[0] * (longest - len(row.tokens))] for row in rows], dtype=mx.int32)
