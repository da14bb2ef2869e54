"""DRY ("don't repeat yourself"): the longer a repetition a token would continue, the larger its penalty.

The search for repetitions runs over token ids on the host, so these rows wait for their last token.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import islice

from mlxserver.sampling.bias import Additions
from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.vocabulary import Pieces

_MAX_BREAKER_BYTES = 40
_MAX_TAIL = 20
_LOG_FLOAT_MAX = 88.7228391

Breakers = dict[int, set[tuple[int, ...]]]
"""A token in which a breaker begins → the tokens that must follow to complete it, () if it is complete."""


def find_breakers(texts: Sequence[str], pieces: Pieces) -> Breakers:
    """Every way to write a breaker that begins inside some token of the vocabulary."""
    breakers: Breakers = {}
    encoded: dict[bytes, tuple[int, ...]] = {}
    for wanted in dict.fromkeys(text.encode().split(b"\0")[0][:_MAX_BREAKER_BYTES] for text in texts):
        if not wanted:
            continue
        whole = set(pieces.holding(wanted))
        for token in whole:
            breakers.setdefault(token, set()).add(())
        for n in range(1, len(wanted)):
            begun = [token for token in pieces.ending_with(wanted[:n]) if token not in whole]
            if not begun:
                continue
            rest = wanted[n:]
            if rest not in encoded:
                encoded[rest] = tuple(pieces.encode(rest)[:_MAX_TAIL])
            for token in begun:
                breakers.setdefault(token, set()).add(encoded[rest])
    return breakers


class DryHistory:
    """The last tokens of one row, newest first, and what they forbid to continue."""

    def __init__(self, params: SamplingParams, breakers: Breakers, prompt: Sequence[int]) -> None:
        self._params = params
        self._breakers = breakers
        size = params.dry_penalty_last_n
        self._recent = deque(reversed(prompt[-size:]), maxlen=size)

    def push(self, token: int) -> None:
        self._recent.appendleft(token)

    def penalties(self) -> dict[int, float]:
        """What to subtract from the logit of each token that would continue a repetition."""
        allowed = self._params.dry_allowed_length
        recent = list(self._recent)
        if len(recent) <= allowed:
            return {}
        limit = self._limit(recent)
        if limit < allowed:
            return {}
        longest: dict[int, int] = {}
        for k, run in islice(enumerate(common_runs(recent)), 1, None):
            length = min(run, limit)
            if length >= allowed:
                longest[recent[k - 1]] = max(longest.get(recent[k - 1], 0), length)
        return {t: self._penalty(n - allowed) for t, n in longest.items() if not self._breaks(t)}

    def _breaks(self, token: int) -> bool:
        return () in self._breakers.get(token, ())

    def _limit(self, recent: list[int]) -> int:
        """How far back a repetition may reach: to the newest breaker."""
        for i, token in enumerate(recent):
            lengths = [len(tail) for tail in self._breakers.get(token, ()) if _follows(tail, recent, i)]
            if lengths:
                return i - max(lengths)
        return len(recent)

    def _penalty(self, excess: int) -> float:
        base = self._params.dry_base
        most = int(_LOG_FLOAT_MAX / math.log(base)) if base > 1.000001 else 0
        return self._params.dry_multiplier * base ** (min(excess, most) if most > 0 else excess)


def _follows(tail: tuple[int, ...], recent: list[int], i: int) -> bool:
    return len(tail) <= i and all(recent[i - 1 - n] == token for n, token in enumerate(tail))


def common_runs(tokens: list[int]) -> list[int]:
    """The Z-function: how many tokens from each position on equal those from the start (0 at the start)."""
    runs = [0] * len(tokens)
    left = right = 0
    for k in range(1, len(tokens)):
        run = min(right - k, runs[k - left]) if k < right else 0
        while k + run < len(tokens) and tokens[run] == tokens[k + run]:
            run += 1
        if k + run > right:
            left, right = k, k + run
        runs[k] = run
    return runs


class Dry:
    def __init__(self, histories: Sequence[DryHistory], n_vocab: int) -> None:
        self._histories = histories
        self._n_vocab = n_vocab

    def __call__(self, candidates: Candidates) -> Candidates:
        additions = Additions()
        for row, history in enumerate(self._histories):
            for token, penalty in history.penalties().items():
                additions.add(row, token, -penalty)
        return additions.apply(candidates, self._n_vocab)
