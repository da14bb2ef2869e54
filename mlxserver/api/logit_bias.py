"""The ``logit_bias`` field: pairs or an object, by token id or by text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from mlxserver.api.json_body import float32
from mlxserver.api.request_bounds import MAX_BIAS_TEXTS, check_count
from mlxserver.models.model import Tokenizer

Biases = tuple[tuple[int, float], ...]

_WHOLE_NUMBER = re.compile(r"\s*[+-]?\d+|")
"""What C's strtol takes whole; the empty text counts as 0."""


def read(value: Any, tokenizer: Tokenizer) -> Biases:
    """(token, bias) in order. Entries of another shape, and ids outside the vocabulary, are skipped.

    Raises ``ValueError`` for too many.
    """
    check_count(value, tokenizer.n_vocab)
    entries = list(_entries(value))
    check_count([key for key, _ in entries if isinstance(key, str)], MAX_BIAS_TEXTS)
    biases = tuple(
        (token, bias)
        for key, raw in entries
        if (bias := _bias(raw)) is not None
        for token in _tokens(key, tokenizer)
    )
    check_count(biases, tokenizer.n_vocab)
    return biases


def forbid_end(tokenizer: Tokenizer) -> Biases:
    """Biases that make every end-of-generation token impossible."""
    return tuple((token, -math.inf) for token in sorted(tokenizer.eog_ids))


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list):
        for entry in value:
            if isinstance(entry, list) and len(entry) == 2:
                yield entry[0], entry[1]
    elif isinstance(value, dict):
        for key, bias in value.items():
            yield (int(key or "0") if _WHOLE_NUMBER.fullmatch(key) else key), bias


def _bias(value: Any) -> float | None:
    if value is False:
        return -math.inf
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float32(float(value))
    return None


def _tokens(key: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(key, str):
        return tokenizer.encode(key, add_special=False, parse_special=False)
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < tokenizer.n_vocab:
        return [key]
    return []
