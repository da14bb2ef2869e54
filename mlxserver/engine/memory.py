"""Whether what a step is to evaluate fits into memory, and in which pieces."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx

from mlxserver.engine.plan import Chunk, Decode, Embed
from mlxserver.kv.memory import LEAST_PIECE, OutOfMemory, is_exhausted
from mlxserver.kv.slot_states import SlotStates

log = logging.getLogger("mlxserver.srv")


class StepMemory:
    """Asked by the runner before it evaluates anything."""

    def __init__(self, states: SlotStates) -> None:
        self._states = states
        self.budget = states.budget

    def pieces(self, chunk: Chunk) -> Iterator[Chunk]:
        """The chunk, or parts of it that are to be evaluated one after the other.

        Raises OutOfMemory where not even the smallest part fits.
        """
        if self.budget.limit is None:
            yield chunk
            return
        costs = self.budget.costs
        n_expected = max(chunk.end, chunk.n_expected)
        self._states.expect(chunk.slot, n_expected)
        at = 0
        while at < len(chunk.tokens):
            start = chunk.end - len(chunk.tokens) + at
            n = left = len(chunk.tokens) - at
            while n > LEAST_PIECE and not self.budget.has_room(costs.chunk(n, start + n)):
                n = max(LEAST_PIECE, n // 2)
            self.budget.claim(costs.chunk(n, start + n), f"evaluating {n} tokens at {start}")
            yield replace(chunk, tokens=chunk.tokens[at : at + n], end=start + n, n_expected=n_expected)
            at += n
            if n < left:
                mx.eval(self._states.arrays())  # what it took for a while is given back first

    def fit_together(
        self, chunks: Sequence[Chunk], decodes: Sequence[Decode] = (), reads_all: bool = False
    ) -> bool:
        """Whether chunks of prompts, and rows, may share a pass without anything being dropped for it.

        ``reads_all``: logits are made of all tokens, not of the rows' alone.
        """
        if self.budget.limit is None:
            return True
        costs, ends = self.budget.costs, {chunk.slot: chunk.end for chunk in chunks}
        cost = sum(costs.chunk(len(chunk.tokens), chunk.end) for chunk in chunks)
        if decodes:
            longest = max(ends.get(decode.slot, self._states.length(decode.slot)) + 1 for decode in decodes)
            cost += costs.step(len(decodes), longest)
        if reads_all:
            cost += costs.row * sum(len(chunk.tokens) for chunk in chunks)
        wanted = {chunk.slot: max(chunk.end, chunk.n_expected) for chunk in chunks}
        return self.budget.lacking(self._states.growth(wanted) + cost) == 0

    def expect_tokens(self, decodes: Sequence[Decode]) -> bool:
        """Whether slots can get another token each without growing and without anything being dropped."""
        if self.budget.limit is None or not decodes:
            return True
        wanted = {decode.slot: self._end(decode) for decode in decodes}
        cost = self.budget.costs.step(len(decodes), max(wanted.values()))
        return self._states.growth(wanted) == 0 and self.budget.lacking(cost) == 0

    def expect_token(self, decodes: Sequence[Decode]) -> None:
        """Make room for another token of the last of some slots. Raises OutOfMemory."""
        self._states.expect(decodes[-1].slot, self._end(decodes[-1]))
        longest = max(self._end(decode) for decode in decodes)
        cost = self.budget.costs.step(len(decodes), longest)
        self.budget.claim(cost, f"a step of {len(decodes)} slots")

    def _end(self, decode: Decode) -> int:
        return self._states.length(decode.slot) + 1

    def shortage(self, embeds: Sequence[Embed]) -> str:
        """Why prompts, padded to one length, do not fit; empty where they do."""
        if self.budget.limit is None:
            return ""
        longest = max(len(embed.tokens) for embed in embeds)
        end = max(embed.start for embed in embeds) + longest
        try:
            self.budget.claim(
                self.budget.costs.chunk(len(embeds) * longest, end), f"reading {longest} tokens"
            )
            return ""
        except OutOfMemory as error:
            return str(error)

    def failed(self, error: BaseException) -> bool:
        """Whether an allocation failed; whatever can go has gone then, and what failed may be tried again."""
        if not is_exhausted(error):
            return False
        log.warning("an allocation failed: stored state is dropped")
        self.budget.drop_all()
        return True
