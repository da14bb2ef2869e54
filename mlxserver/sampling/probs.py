"""What a token's probability report holds: plain data, no arrays."""

from __future__ import annotations

from dataclasses import dataclass

LOWEST = -3.4028234663852886e38
"""The logarithm reported for a probability of 0: the lowest 32-bit float."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token with its probability: a natural logarithm, or the plain value for ``post_sampling_probs``."""

    token: int
    value: float


@dataclass(frozen=True, slots=True)
class TokenProbs:
    """The chosen token's value and the ``n_probs`` best candidates, best first."""

    chosen: Candidate
    top: tuple[Candidate, ...]
