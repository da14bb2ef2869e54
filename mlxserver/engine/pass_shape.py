"""What a forward pass over prompts costs depends on this alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassShape:
    """``n_rows`` of ``width`` tokens, padding included; all read the columns up to the furthest end."""

    n_rows: int
    width: int
    reach: int

    @staticmethod
    def of(parts: Sequence[tuple[int, int]]) -> PassShape:
        """One row for the tokens ``[start, end)`` of each prompt."""
        return PassShape(len(parts), max(end - start for start, end in parts), max(end for _, end in parts))

    @property
    def n_tokens(self) -> int:
        return self.n_rows * self.width

    @property
    def position(self) -> float:
        """Of a token on the average, by the columns that it reads."""
        return self.reach - self.width / 2
