"""Token probabilities as every dialect shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mlxserver.api.generation import ProbEntry
from mlxserver.chat.text_stream import complete_len

LOWEST_FLOAT = -3.4028234663852886e38
"""Stands for the logarithm of 0, which JSON cannot hold."""


def prob_entries(entries: Iterable[ProbEntry]) -> list[dict[str, Any]]:
    """One object a token, with the candidates of its step. A cut last character is left out of its text."""
    return [_entry(entry) for entry in entries]


def _entry(entry: ProbEntry) -> dict[str, Any]:
    value_key, top_key = ("prob", "top_probs") if entry.is_probability else ("logprob", "top_logprobs")
    top = [_token(token, text, value_key, value) for token, text, value in entry.top]
    return _token(entry.token, entry.text, value_key, entry.value) | {top_key: top}


def _token(token: int, text: bytes, value_key: str, value: float) -> dict[str, Any]:
    return {
        "id": token,
        "token": text[: complete_len(text)].decode("utf-8", "replace"),
        "bytes": list(text),
        value_key: LOWEST_FLOAT if value == -math.inf else value,
    }
