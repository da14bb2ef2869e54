"""Rows of one signature, sampled together: each sampler once, with one parameter a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from mlxserver.sampling.adaptive import AdaptiveP
from mlxserver.sampling.bias import LogitBias
from mlxserver.sampling.candidates import Candidates
from mlxserver.sampling.constraint import Constraint, Redist
from mlxserver.sampling.dry import Dry
from mlxserver.sampling.infill import Infill
from mlxserver.sampling.mirostat import Mirostat, by_surprise, by_zipf
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.penalties import Penalties
from mlxserver.sampling.row import Row
from mlxserver.sampling.selection import Dist, Greedy, Selected
from mlxserver.sampling.temperature import DynamicTemperature, Temperature, ZeroTemperature
from mlxserver.sampling.truncation import MinP, TopK, TopNSigma, TopP, Typical, Xtc

Filter = Callable[[Candidates], Candidates]
Selector = Callable[[Candidates], Selected]

_STATELESS: dict[str, Callable[[Sequence[SamplingParams]], Filter]] = {
    "top_n_sigma": TopNSigma,
    "top_k": TopK,
    "typ_p": Typical,
    "top_p": TopP,
    "min_p": MinP,
    "min_p_keep": MinP,
    "temperature": Temperature,
    "zero_temperature": lambda params: ZeroTemperature(),
    "dynamic_temperature": DynamicTemperature,
}


class Group:
    """``places`` are the rows' positions in the batch."""

    def __init__(self, rows: Sequence[Row], places: Sequence[int], n_vocab: int, infill: Infill) -> None:
        self.rows = rows
        self.places = places
        self._n_vocab = n_vocab
        self._infill = infill
        self._params = [row.params for row in rows]
        *filters, selector = rows[0].signature
        self.greedy = selector == "greedy"
        self.plain = self.greedy and not filters
        self._filters = [self._filter(name, place) for place, name in enumerate(filters)]
        self._select = self._selector(selector)
        self._constraint = Constraint.of(rows, n_vocab)

    def sample(self, logits: mx.array) -> Selected:
        """``logits`` (R, n_vocab) of these rows."""
        # Rounding to fewer bits keeps the order, so the best token needs no conversion.
        logits = logits if self.plain else logits.astype(mx.float32)
        selected = self._chain(logits) if self._constraint is None else self._constraint(logits, self._chain)
        for i, row in enumerate(self.rows):
            if row.window is not None:
                row.window.push(selected.tokens[i])
        return selected

    def _chain(self, logits: mx.array) -> Selected:
        candidates = Candidates(logits)
        for apply in self._filters:
            candidates = apply(candidates)
        return self._select(candidates)

    def _filter(self, name: str, place: int) -> Filter:
        if name in _STATELESS:
            return _STATELESS[name](self._params)
        if name == "logit_bias":
            return LogitBias(self._params, self._n_vocab)
        if name == "penalties":
            return Penalties(self._params, [row.window for row in self.rows if row.window])
        if name == "dry":
            return Dry([row.dry for row in self.rows if row.dry], self._n_vocab)
        if name == "xtc":
            return Xtc(self._params, [row.xtc[place] for row in self.rows])
        if name == "infill":
            return self._infill
        raise KeyError(name)

    def _selector(self, name: str) -> Selector:
        if name == "greedy":
            return Greedy()
        if name == "dist" and self.rows[0].redraws is not None:
            return Redist([row.redraws for row in self.rows if row.redraws])
        if name == "dist":
            return Dist([row.draws for row in self.rows])
        if name == "adaptive_p":
            return AdaptiveP(self._params, [row.adaptive for row in self.rows if row.adaptive])
        truncate = by_zipf(self._n_vocab) if name == "mirostat" else by_surprise
        return Mirostat(self._params, [row.mirostat for row in self.rows if row.mirostat], truncate)
