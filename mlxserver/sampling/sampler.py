"""The sampler of an engine: one chain a row, applied to a batch of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import mlx.core as mx

from mlxserver.sampling.dry import Breakers, find_breakers
from mlxserver.sampling.grammar.compiler import compiler_of
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.group import Group
from mlxserver.sampling.infill import Infill
from mlxserver.sampling.params import SamplingParams, validate
from mlxserver.sampling.probs import TokenProbs
from mlxserver.sampling.reasoning_budget import BudgetState
from mlxserver.sampling.report import Certain, LogProbs, PostSamplingProbs, Report
from mlxserver.sampling.row import Row
from mlxserver.sampling.selection import Selected
from mlxserver.sampling.undo import Undo
from mlxserver.sampling.vocabulary import Pieces, Vocabulary

_BREAKER_SETS = 16


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token a row. Nothing is evaluated yet, except for rows that need the host."""

    tokens: mx.array
    """(B,) int32."""
    states: list[mx.array]
    reports: dict[int, tuple[Report, int]]
    """Batch index → a report and the row's place in it."""

    def arrays(self) -> list[mx.array]:
        """What the engine must evaluate with the step."""
        reports = {id(report): report for report, _ in self.reports.values()}
        return [self.tokens, *self.states, *(a for report in reports.values() for a in report.arrays())]

    def probs(self, i: int) -> TokenProbs | None:
        """After evaluation: the report of batch index ``i``, None when its row asked for none."""
        if i not in self.reports:
            return None
        report, place = self.reports[i]
        return report.row(place, _int(self.tokens[i]))


class Sampler:
    """Lives on the engine thread; rows are named by any key."""

    def __init__(self, n_vocab: int, eog_ids: frozenset[int], vocabulary: Vocabulary) -> None:
        """``n_vocab`` is the width of the logits."""
        self._n_vocab = n_vocab
        self._vocabulary = vocabulary
        pieces = Pieces(n_vocab, vocabulary)
        self._infill = Infill(eog_ids, vocabulary.eos_id, pieces)
        self._rows: dict[int, Row] = {}
        self._batch: tuple[int, ...] = ()
        self._groups: list[Group] = []
        self._undo = Undo(())

        @lru_cache(maxsize=_BREAKER_SETS)
        def breakers(texts: tuple[str, ...]) -> Breakers:
            return find_breakers(texts, pieces)

        self._breakers = breakers

    def begin(self, row: int, params: SamplingParams, prompt: Sequence[int]) -> None:
        """A request starts to generate on ``row`` after ``prompt``. Raises SamplerError."""
        validate(params)
        self._rows[row] = Row(
            params, prompt, self._n_vocab, self._breakers, self._grammar(params), self._budget(params)
        )
        self._batch = ()

    def _grammar(self, params: SamplingParams) -> GrammarState | None:
        if params.grammar is None:
            return None
        compiler = compiler_of(self._vocabulary)
        matcher = compiler.matcher(params.grammar)
        return GrammarState(params.grammar, matcher, compiler.tokenizer, self._vocabulary)

    def _budget(self, params: SamplingParams) -> BudgetState | None:
        budget = params.reasoning_budget
        return None if budget is None else BudgetState(budget, self._vocabulary.piece)

    def end_reasoning(self, row: int) -> None:
        """As if the row's reasoning had used up its budget, if it is at it."""
        budget = self._rows[row].budget
        if budget is not None:
            self._rows[row].catch_up()
            budget.end()

    def end(self, row: int) -> None:
        del self._rows[row]
        self._batch = ()

    def needs_host(self, row: int) -> bool:
        """Whether the row's last token must be accepted before its next one is sampled."""
        return self._rows[row].needs_host

    def accept(self, row: int, token: int) -> None:
        """The host knows the row's next token. Raises SamplerError where the row's grammar cannot go on."""
        self._rows[row].accept(token)

    def sample(self, logits: mx.array, rows: Sequence[int]) -> Sampled:
        """``logits`` (B, n_vocab), one of ``rows`` a line; the chain's state moves on by one token.

        Where it raises, the state is what it was before.
        """
        if self._batch != tuple(rows):
            self._regroup(rows)
        members = [self._rows[row] for row in rows]
        self._undo = Undo(members)
        try:
            return self._sample(logits, rows, members)
        except BaseException:
            self._undo.put_back()
            raise

    def undo(self) -> None:
        """Take back the last ``sample``."""
        self._undo.put_back()

    def _sample(self, logits: mx.array, rows: Sequence[int], members: Sequence[Row]) -> Sampled:
        constrained = [(place, row) for place, row in enumerate(members) if row.follows_tokens]
        if constrained:
            # the masks are made while the device is at the forward pass
            mx.async_eval(logits)  # type: ignore[no-untyped-call]
            for _, row in constrained:
                row.catch_up()
            logits = _with_forced(logits, [row.forced_token for row in members])
        selected = [group.sample(_lines(logits, group.places)) for group in self._groups]
        tokens = _in_batch_order([s.tokens for s in selected], [g.places for g in self._groups])
        for place, row in constrained:
            row.remember(tokens, place)
        states = [array for row in members for array in row.state()]
        return Sampled(tokens, states, self._reports(logits, rows, tokens, selected))

    def _regroup(self, rows: Sequence[int]) -> None:
        places: dict[tuple[tuple[str, ...], bool], list[int]] = {}
        for place, row in enumerate(rows):
            key = (self._rows[row].signature, self._rows[row].grammar is not None)
            places.setdefault(key, []).append(place)
        self._groups = [
            Group([self._rows[rows[i]] for i in group], group, self._n_vocab, self._infill)
            for group in places.values()
        ]
        self._batch = tuple(rows)

    def _reports(
        self, logits: mx.array, rows: Sequence[int], tokens: mx.array, selected: Sequence[Selected]
    ) -> dict[int, tuple[Report, int]]:
        params = [self._rows[row].params for row in rows]
        raw = [i for i, p in enumerate(params) if p.n_probs > 0 and not p.post_sampling_probs]
        reports: dict[int, tuple[Report, int]] = {}
        if raw:
            wanted = [params[i].n_probs for i in raw]
            report = LogProbs(_lines(logits, raw), tokens[mx.array(raw)], wanted)
            reports.update({i: (report, place) for place, i in enumerate(raw)})
        for group, chosen in zip(self._groups, selected, strict=True):
            reports.update(_post_sampling(group, chosen))
        return reports


def _post_sampling(group: Group, selected: Selected) -> dict[int, tuple[Report, int]]:
    params = [row.params for row in group.rows]
    wanted = [i for i, p in enumerate(params) if p.n_probs > 0 and p.post_sampling_probs]
    if not wanted:
        return {}
    report: Report = Certain()
    if not group.greedy:
        report = PostSamplingProbs(selected, wanted, [params[i].n_probs for i in wanted])
    return {group.places[i]: (report, place) for place, i in enumerate(wanted)}


def _int(scalar: mx.array) -> int:
    return int(cast(int, scalar.item()))


def _lines(logits: mx.array, places: Sequence[int]) -> mx.array:
    return logits if len(places) == logits.shape[0] else logits[mx.array(list(places))]


def _with_forced(logits: mx.array, forced: Sequence[int]) -> mx.array:
    """Where a token is forced (not -1), it is the only one that is possible."""
    if max(forced) < 0:
        return logits
    tokens = mx.array(list(forced), dtype=mx.int32)[:, None]
    is_possible = (tokens < 0) | (mx.arange(logits.shape[-1], dtype=mx.int32)[None] == tokens)
    return mx.where(is_possible, logits, -mx.inf)


def _in_batch_order(parts: Sequence[mx.array], places: Sequence[Sequence[int]]) -> mx.array:
    if len(parts) == 1:
        return parts[0]
    order = sorted((place, i) for i, place in enumerate(place for group in places for place in group))
    return mx.concatenate(list(parts))[mx.array([i for _, i in order])]
