"""What a grammar lets through: masks over the vocabulary, applied to a group of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np

from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.random import ConditionalDraws, take_draws
from mlxserver.sampling.row import Row
from mlxserver.sampling.selection import Selected, chosen, pick

Chain = Callable[[mx.array], Selected]


class Constraint:
    """llama.cpp samples freely first, and once more among what the grammar allows if it refuses the token.

    For a chain that takes the best token that is the same as taking the best of what is allowed. Chains with
    random states beside the last draw see only what is allowed, too.
    """

    def __init__(self, rows: Sequence[Row], grammars: Sequence[GrammarState], n_vocab: int) -> None:
        self._grammars = grammars
        self._n_vocab = n_vocab
        self._draws = [row.redraws for row in rows if row.redraws is not None]
        self._forbidden = [_forbidden(row) for row in rows]

    @staticmethod
    def of(rows: Sequence[Row], n_vocab: int) -> Constraint | None:
        """None for rows without grammars; a group has only rows of one sort."""
        grammars = [row.grammar for row in rows if row.grammar is not None]
        return Constraint(rows, grammars, n_vocab) if grammars else None

    def __call__(self, logits: mx.array, chain: Chain) -> Selected:
        """``logits`` (R, n_vocab)."""
        if not any(grammar.is_active for grammar in self._grammars):
            return self._select(logits, chain, None)
        allowed = self._allowed()
        selected = self._select(logits, chain, allowed)
        ends = [g.forced_end(bad) for g, bad in zip(self._grammars, self._forbidden, strict=True)]
        if max(ends) < 0:
            return selected
        forced = mx.array(ends, dtype=mx.int32)
        return replace(selected, tokens=mx.where(forced >= 0, forced, selected.tokens))

    def _select(self, logits: mx.array, chain: Chain, allowed: mx.array | None) -> Selected:
        if allowed is None:
            return chain(logits)
        masked = mx.where(allowed, logits, -mx.inf)
        if not self._draws:
            return chain(masked)
        free = chain(logits)
        fits = mx.take_along_axis(allowed, free.tokens[:, None], axis=-1)
        again = chain(masked)
        for row, draws in enumerate(self._draws):
            draws.give_back(fits[row, 0])
        return _merged(fits, free, again)

    def _allowed(self) -> mx.array:
        """(R, n_vocab) bool."""
        words = np.full((len(self._grammars), (self._n_vocab + 31) // 32), -1, dtype=np.int32)
        for grammar, line in zip(self._grammars, words, strict=True):
            if grammar.is_active:
                grammar.fill(line)
        bits = mx.array(words.view(np.uint32))[:, :, None] >> mx.arange(32, dtype=mx.uint32)
        return (bits & 1).astype(mx.bool_).reshape(len(words), -1)[:, : self._n_vocab]


class Redist:
    """As ``Dist``; what it draws may be given back."""

    def __init__(self, draws: Sequence[ConditionalDraws]) -> None:
        self._draws = list(draws)

    def __call__(self, candidates: Candidates) -> Selected:
        always = mx.ones((len(self._draws), 1), dtype=mx.bool_)
        return chosen(candidates, pick(candidates.probs(), take_draws(self._draws, always)))


def _merged(first: mx.array, a: Selected, b: Selected) -> Selected:
    """``a`` where ``first`` (R, 1) holds, else ``b``; one chain made both, so they have one form."""
    index = mx.where(first, a.index, b.index)
    one, other = a.candidates, b.candidates
    candidates = Candidates(
        mx.where(first, one.logits, other.logits),
        None if one.ids is None or other.ids is None else mx.where(first, one.ids, other.ids),
        None if one.keep is None or other.keep is None else mx.where(first, one.keep, other.keep),
        one.sorted and other.sorted,
    )
    return chosen(candidates, index)


def _forbidden(row: Row) -> frozenset[int]:
    return frozenset(token for token, bias in row.params.logit_bias if bias == -math.inf)
