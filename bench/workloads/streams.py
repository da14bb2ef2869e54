"""Streams that all run at the same time: what decoding gives."""

from __future__ import annotations

from dataclasses import dataclass

from bench.client import completion, together
from bench.measures import decode_rate
from bench.texts import N_LASTING, lasting
from bench.workload import Figures, Play

MORE_WORDS = 2


@dataclass(frozen=True)
class Streams:
    """``rows``: how many streams, one after the other. ``n_predict``: tokens of each."""

    rows: tuple[int, ...]
    n_predict: int

    def __call__(self, play: Play) -> Figures:
        n_predict = self.n_tokens(play.quick)
        return {rate_label(n): rate(play.url, n, n_predict, play.seed(n)) for n in self.rows}

    def n_tokens(self, quick: bool) -> int:
        return self.n_predict // 4 if quick else self.n_predict


def rate(url: str, n: int, n_predict: int, nonce: int) -> float:
    """Tokens/s of ``n`` streams, whose prompts are known but for the last words: so they begin together."""
    together(url, [completion(prompt, 4) for prompt in lasting(n, nonce)])
    prompts = lasting(n, nonce, N_LASTING + MORE_WORDS)
    return decode_rate(together(url, [completion(prompt, n_predict) for prompt in prompts]))


def rate_label(n: int) -> str:
    return f"tokens/s, {n} stream{'s' if n > 1 else ''}"
