"""How much of one thing a request may ask for: far more than clients do, and less than holds others up.

Each function raises ``ValueError`` with the text a client sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAX_PROMPTS = 8192
"""Prompts of a request, each a task of its own."""
MAX_STOPS, MAX_STOP_BYTES = 1024, 256 * 1024
"""Stop strings are looked for after every token."""
MAX_BREAKERS = 256
"""Every one is looked for in the whole vocabulary, and their beginnings after every token."""
MAX_BIAS_TEXTS = 4096
"""Biases that name their tokens by a text; those by id are as many as there are tokens."""
MAX_N_PROBS = 10_000
"""Candidates told of each token."""
MAX_SAMPLERS = 64
MAX_TRIGGERS = 256
MAX_ADAPTERS = 4096
MAX_PRESERVED = 4096
MAX_END_TAGS = 64
MAX_RESPONSE_FIELDS = 4096


def check_count(items: Any, most: int) -> None:
    """What is no list counts as one thing."""
    if isinstance(items, (list, tuple, dict)) and len(items) > most:
        raise ValueError(f"too many elements ({len(items)}, at most {most})")


def check_stops(words: Sequence[str]) -> None:
    check_count(words, MAX_STOPS)
    n_bytes = sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if n_bytes > MAX_STOP_BYTES:
        raise ValueError(f"the texts are too long together ({n_bytes} bytes, at most {MAX_STOP_BYTES})")
