"""How far a trace of logits is from the cold one. All figures are in nats, reckoned in 64-bit floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

N_TOP = 10
"""Candidates a position whose log-probabilities are compared: the cold trace's best ones."""
BLOCK = 32
"""Positions at a time: 64-bit floats over a large vocabulary take much memory."""


@dataclass(frozen=True, slots=True)
class Rows:
    """``logits`` (n, n_vocab) after the tokens at the positions from ``start`` on."""

    start: int
    logits: Array


class Trace:
    """The cold logits (n, n_vocab) after each of ``tokens``."""

    def __init__(self, tokens: Sequence[int], logits: Array) -> None:
        self.tokens = tuple(tokens)
        self.logits = logits
        self.log_sum = np.concatenate([_log_sum(row[None]) for row in logits])
        self.watched = _watched(self.tokens, logits)
        """(n, at most N_TOP + 1) tokens whose log-probabilities are compared."""

    def __len__(self) -> int:
        return len(self.tokens)

    def log_probs(self, start: int, end: int) -> Array:
        log_probs: Array = self.logits[start:end].astype(np.float64) - self.log_sum[start:end, None]
        return log_probs


@dataclass(frozen=True, slots=True)
class Differences:
    """A value a position, each (n,)."""

    position: Array
    largest: Array
    """Of abs(log p - log q) over the position's watched tokens."""
    mean: Array
    """Of the same."""
    kl: Array
    """Sum of p (log p - log q) over the whole vocabulary; p is the cold trace."""
    gap: Array
    """Between the cold trace's two best log-probabilities."""
    is_other: Array
    """Whether the best tokens differ."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Over all positions of a path; ``n_decided`` of them had a gap above the threshold."""

    n: int
    max_difference: float
    mean_difference: float
    max_kl: float
    mean_kl: float
    n_decided: int
    n_disagree: int
    """Decided positions whose best tokens differ."""


def compare(cold: Trace, rows: Rows) -> Differences:
    """Raises ValueError where the rows are not positions of the cold trace."""
    start, end = rows.start, rows.start + len(rows.logits)
    if start < 0 or end > len(cold) or rows.logits.shape[1:] != cold.logits.shape[1:]:
        raise ValueError(f"rows {start} to {end} of {rows.logits.shape} do not belong to this trace")
    firsts = range(0, len(rows.logits), BLOCK)
    return joined([_compare(cold, start + i, rows.logits[i : i + BLOCK]) for i in firsts])


def _compare(cold: Trace, start: int, logits: Array) -> Differences:
    end = start + len(logits)
    p = cold.log_probs(start, end)
    q = logits.astype(np.float64) - _log_sum(logits)[:, None]
    watched = cold.watched[start:end]
    change = np.abs(np.take_along_axis(p, watched, 1) - np.take_along_axis(q, watched, 1))
    best = np.partition(p, -2, axis=1)[:, -2:]
    return Differences(
        position=np.arange(start, end),
        largest=change.max(axis=1),
        mean=change.mean(axis=1),
        kl=np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0),
        gap=best[:, 1] - best[:, 0],
        is_other=p.argmax(axis=1) != q.argmax(axis=1),
    )


def joined(parts: Sequence[Differences]) -> Differences:
    """The differences of all parts, in this order."""
    names = Differences.__slots__
    return Differences(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def summary(found: Differences, gap: float) -> Summary:
    """``gap``: above it a position is decided. NaN stays NaN and is within no bound."""
    decided = found.gap > gap
    return Summary(
        n=len(found.position),
        max_difference=float(found.largest.max()),
        mean_difference=float(found.mean.mean()),
        max_kl=float(found.kl.max()),
        mean_kl=float(found.kl.mean()),
        n_decided=int(decided.sum()),
        n_disagree=int((decided & found.is_other).sum()),
    )


def _watched(tokens: tuple[int, ...], logits: Array) -> Array:
    """The best tokens of each position, and the text's own next one where there is one."""
    n_top = min(N_TOP, logits.shape[1])
    best = np.argpartition(logits, -n_top, axis=1)[:, -n_top:]
    following = np.array([*tokens[1:], best[-1, 0]])
    return np.concatenate([best, following[:, None]], axis=1)


def _log_sum(logits: Array) -> Array:
    """(n,) logarithms of the sums of exponentials."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    total: Array = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]
    return total
