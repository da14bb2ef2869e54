"""The infill sampler: ends the text early rather than late, and joins tokens that begin alike.

It compares the tokens' texts, so its candidates are read on the host.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.vocabulary import Pieces

_UNLIKELY = 0.2


@dataclass(slots=True)
class _Entry:
    token: int
    logit: float
    p: float
    eog: bool


class Infill:
    def __init__(self, eog_ids: frozenset[int], eos_id: int, pieces: Pieces) -> None:
        self._eog_ids = eog_ids
        self._eos_id = eos_id
        self._pieces = pieces

    def __call__(self, candidates: Candidates) -> Candidates:
        ranked = candidates.sort()
        probs, size = ranked.probs(), ranked.size()
        assert ranked.ids is not None
        mx.eval(ranked.ids, ranked.logits, probs, size)
        columns: list[Any] = [array.tolist() for array in (ranked.ids, ranked.logits, probs, size)]
        rows = zip(*columns, strict=True)
        kept = [self._filter(ids[:n], logits[:n], p[:n]) for ids, logits, p, (n,) in rows]
        return _listed(kept)

    def _filter(self, ids: list[int], logits: list[float], probs: list[float]) -> list[_Entry]:
        entries = [_Entry(t, lo, p, t in self._eog_ids) for t, lo, p in zip(ids, logits, probs, strict=True)]
        p_eog = sum(e.p for e in entries if e.eog)
        p_text = sum(e.p for e in entries if not e.eog)
        if 3 * p_eog * len(entries) > p_text:
            return [e for e in entries if e.eog]
        self._join_prefixes(entries)
        entries = [e for e in entries if e.eog or e.p >= _UNLIKELY]
        n_text = sum(not e.eog for e in entries)
        if n_text == 0:
            return [_Entry(self._eos_id, 1.0, 1.0, True)]
        total = sum(e.p for e in entries)
        return [e for e in entries if e.eog or e.p / total >= 1 / (n_text + 1)]

    def _join_prefixes(self, entries: list[_Entry]) -> None:
        """Where one text begins another, the likelier token takes over the other's probability."""
        texts = self._pieces.all()
        by_text = sorted(range(len(entries)), key=lambda i: texts[entries[i].token])
        sorted_texts = [texts[entries[i].token] for i in by_text]
        for i, entry in enumerate(entries):
            text = texts[entry.token]
            if not text:
                continue
            first = bisect_left(sorted_texts, text)
            last = bisect_right(sorted_texts, text, key=lambda t: t[: len(text)])
            for j in sorted(by_text[first:last]):
                if entry.logit == -math.inf:
                    break
                if j != i and entries[j].logit != -math.inf:
                    _merge(entry, entries[j])


def _merge(prefix: _Entry, longer: _Entry) -> None:
    stays, goes = (longer, prefix) if longer.p > prefix.p else (prefix, longer)
    stays.p += goes.p
    goes.logit, goes.p = -math.inf, 0.0


def _listed(rows: Sequence[Sequence[_Entry]]) -> Candidates:
    shape = (len(rows), max(len(row) for row in rows))
    ids = np.zeros(shape, dtype=np.int32)
    logits = np.full(shape, -np.inf, dtype=np.float32)
    keep = np.zeros(shape, dtype=bool)
    for i, row in enumerate(rows):
        for j, entry in enumerate(row):
            ids[i, j], logits[i, j], keep[i, j] = entry.token, entry.logit, True
    return Candidates(mx.array(logits), mx.array(ids), mx.array(keep), sorted=True)
