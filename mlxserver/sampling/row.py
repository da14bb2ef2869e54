"""What the sampler keeps of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx

from mlxserver.sampling.adaptive import AdaptiveState
from mlxserver.sampling.chain import HOST, can_resample, signature
from mlxserver.sampling.dry import Breakers, DryHistory
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.mirostat import MirostatState
from mlxserver.sampling.params import SamplingParams
from mlxserver.sampling.penalties import Window
from mlxserver.sampling.random import ConditionalDraws, Draws, Mersenne
from mlxserver.sampling.reasoning_budget import BudgetState


class Row:
    """The state of each active sampler, as after the prompt; each has its own random numbers."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        n_vocab: int,
        breakers: Callable[[tuple[str, ...]], Breakers],
        grammar: GrammarState | None = None,
        budget: BudgetState | None = None,
    ) -> None:
        self.params = params
        self.signature = signature(params)
        self.needs_host = not HOST.isdisjoint(self.signature)
        self.draws = Draws(Mersenne(params.seed).doubles)
        self.grammar = grammar
        self.budget = budget
        self.redraws = self._doubles() if grammar is not None and can_resample(self.signature) else None
        """In place of ``draws`` where a grammar may refuse a token, and another one is drawn then."""
        self.newest: tuple[mx.array, int] | None = None
        """The newest token, a place in an array, until grammar and budget have taken it in."""
        self.window = Window(n_vocab, params.repeat_last_n, prompt) if "penalties" in self.signature else None
        self.dry: DryHistory | None = None
        if "dry" in self.signature:
            self.dry = DryHistory(params, breakers(params.dry_sequence_breakers), prompt)
        self.xtc = {i: self._floats() for i, name in enumerate(self.signature) if name == "xtc"}
        self.mirostat: MirostatState | None = None
        if self.signature[-1] in ("mirostat", "mirostat_v2"):
            self.mirostat = MirostatState(params.mirostat_tau, self._doubles())
        self.adaptive = AdaptiveState(params, self._doubles()) if self.signature[-1] == "adaptive_p" else None

    def _doubles(self) -> ConditionalDraws:
        return ConditionalDraws(Mersenne(self.params.seed).doubles)

    def _floats(self) -> ConditionalDraws:
        return ConditionalDraws(Mersenne(self.params.seed).floats)

    def accept(self, token: int) -> None:
        """Raises SamplerError where the grammar cannot go on."""
        if self.dry is not None:
            self.dry.push(token)
        if self.grammar is not None:
            self.grammar.check()

    @property
    def follows_tokens(self) -> bool:
        """Its newest token must be known before the next one is chosen."""
        return self.grammar is not None or self.budget is not None

    @property
    def forced_token(self) -> int:
        """The one token that may come next; -1: any."""
        return -1 if self.budget is None else self.budget.forced_token

    def remember(self, tokens: mx.array, place: int) -> None:
        """The row's newest token, which its grammar and budget need before the next one."""
        self.newest = (tokens, place)

    def catch_up(self) -> None:
        """They take in the newest token; waits for it if need be, but for nothing launched later."""
        if self.newest is None:
            return
        tokens, place = self.newest
        token = cast(list[int], tokens.tolist())[place]
        for known in self._heard_by_grammar(token):
            if self.grammar is not None:
                self.grammar.accept(known)
        self.newest = None

    def _heard_by_grammar(self, token: int) -> Sequence[int]:
        """A lazy grammar hears nothing of reasoning but its end, which may be its trigger."""
        if self.budget is None:
            return (token,)
        was_thinking = self.budget.is_thinking
        self.budget.accept(token)
        is_lazy = self.params.grammar is not None and self.params.grammar.lazy
        return self.budget.ended_by if is_lazy and was_thinking else (token,)

    def parts(self) -> list[Any]:
        """What sampling a token changes; the names of its attributes that change are its ``CHANGES``."""
        draws = [self.redraws, *self.xtc.values()]
        for steered in (self.mirostat, self.adaptive):
            draws += [steered.draws] if steered is not None else []
        parts = [self.draws, self.window, self.mirostat, self.adaptive, *draws]
        return [part for part in parts if part is not None]

    def state(self) -> list[mx.array]:
        """What must be evaluated with the step, so that graphs do not grow."""
        arrays = [draws.used for draws in self.xtc.values()]
        if self.redraws is not None:
            arrays.append(self.redraws.used)
        if self.window is not None:
            arrays += self.window.state()
        if self.mirostat is not None:
            arrays += [self.mirostat.mu, self.mirostat.draws.used]
        if self.adaptive is not None:
            arrays += [self.adaptive.total, self.adaptive.weight, self.adaptive.draws.used]
        return arrays
