"""What a forward pass over prompts costs depends on this alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassShape:
    """So many tokens, at this position on the average, by the columns that they read.

    ``is_own``: it reads the weights by itself; else running streams' tokens are among them, which would have
    read them anyway.
    """

    n_tokens: int
    position: float
    is_own: bool = True

    @staticmethod
    def of(parts: Sequence[tuple[int, int]], is_own: bool = True) -> PassShape:
        """The tokens ``[start, end)`` of each prompt."""
        n = sum(end - start for start, end in parts)
        return PassShape(n, sum((end - start) * (start + end) / 2 for start, end in parts) / n, is_own)

    @staticmethod
    def padded(parts: Sequence[tuple[int, int]]) -> PassShape:
        """Rows of one width, each reading the columns up to the furthest end."""
        width = max(end - start for start, end in parts)
        return PassShape(len(parts) * width, max(end for _, end in parts) - width / 2)
