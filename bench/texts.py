"""Prompts of a known length, which no server has seen. Every word is one token of SmolLM2."""

from __future__ import annotations

import random

from bench.client import Message

WORDS = (
    "apple river stone cloud music green table horse garden summer water house light paper road tree "
    "window winter morning city ocean mountain bread letter number story teacher doctor market island "
    "forest engine bridge village animal color flower machine picture school"
).split()
LASTING = ("apple", "river", "stone", "cloud", "music", "green", "table", "horse") * 2
"""Repeated by the model for hundreds of tokens."""
N_LASTING = 64
END_TOKENS = (0, 2)
ENDLESS = {"logit_bias": {str(token): -100 for token in END_TOKENS}}
"""A field that all servers know; keeps a model from ending its answer."""


def repeated(word: str, n_words: int, nonce: int) -> str:
    return f"{nonce}" + f" {word}" * n_words


def lasting(count: int, nonce: int, n_words: int = N_LASTING) -> list[str]:
    """Prompts that are answered by the same word again and again, a token each."""
    return [repeated(word, n_words, 100 * nonce + i) for i, word in enumerate(LASTING[:count])]


def prose(n_words: int, seed: int) -> str:
    """Words in no order: any two of these texts differ within the first few tokens."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n_words))


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
