"""Streams that all run at the same time: what decoding gives."""

from __future__ import annotations

from dataclasses import dataclass

from bench.client import completion, together
from bench.measures import decode_rate
from bench.texts import lasting
from bench.workload import Figures, Play

JOINING = 6
"""Tokens more for each stream: the first one must still run when the last one has its first token."""


@dataclass(frozen=True)
class Streams:
    """``rows``: how many streams, one after the other. ``n_predict``: at least so many tokens each."""

    rows: tuple[int, ...]
    n_predict: int

    def __call__(self, play: Play) -> Figures:
        return {rate_label(n): self.rate(play, n) for n in self.rows}

    def rate(self, play: Play, n: int) -> float:
        """After a short run at the same batch size, for which a server may have to compile its step."""
        n_predict = self.n_tokens(play.quick) + JOINING * n
        for length, nonce in ((4, play.seed(n)), (n_predict, play.seed(n + 500))):
            played = together(play.url, [completion(prompt, length) for prompt in lasting(n, nonce)])
        return decode_rate(played)

    def n_tokens(self, quick: bool) -> int:
        return self.n_predict // 4 if quick else self.n_predict


def rate_label(n: int) -> str:
    return f"tokens/s, {n} stream{'s' if n > 1 else ''}"
