"""What a forward pass over prompts costs depends on this alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KEYS_WORTH = 2
"""Bringing what a prompt has so far to the processor takes as long as the attention of so many tokens, once
for each chunk, however short. SmolLM2 on a CPU: 1 at position 1,500 and 1.3 at 3,800, 2.7 fitted to the
steps of a server.
"""


@dataclass(frozen=True, slots=True)
class PassShape:
    """So many tokens, at this position on the average, by the columns that they read.

    ``is_own``: it reads the weights by itself; else running streams' tokens are among them, which would have
    read them anyway.
    """

    n_tokens: int
    position: float
    is_own: bool = True
    n_parts: int = 1
    """Prompts whose tokens they are."""

    @property
    def n_columns(self) -> float:
        """Columns that are read, those that every part reads once for all its tokens too."""
        return (self.n_tokens + KEYS_WORTH * self.n_parts) * self.position

    @staticmethod
    def of(parts: Sequence[tuple[int, int]], is_own: bool = True) -> PassShape:
        """The tokens ``[start, end)`` of each prompt."""
        n = sum(end - start for start, end in parts)
        position = sum((end - start) * (start + end) / 2 for start, end in parts) / n
        return PassShape(n, position, is_own, len(parts))

    @staticmethod
    def padded(parts: Sequence[tuple[int, int]]) -> PassShape:
        """Rows of one width, each reading the columns up to the furthest end."""
        width = max(end - start for start, end in parts)
        position = max(end for _, end in parts) - width / 2
        return PassShape(len(parts) * width, position, n_parts=len(parts))
