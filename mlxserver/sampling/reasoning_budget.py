"""Bounds a model's reasoning: counts its tokens, then makes the tokens that end it come next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from mlxserver.sampling.params import ReasoningBudget

Phase = Literal["idle", "counting", "waiting", "forcing", "done"]
"""Before reasoning; in it; past the bound but inside a character; at its forced end; behind it."""


class BudgetState:
    """Of one request; each block of reasoning has a budget of its own."""

    def __init__(self, budget: ReasoningBudget, piece: Callable[[int], bytes]) -> None:
        self._budget = budget
        self._piece = piece
        self._starts = _Matcher((budget.start,))
        self._ends = _Matcher(budget.ends)
        self._remaining = 0
        self._num_forced = 0
        self._phase: Phase = "idle"
        self.ended_by: tuple[int, ...] = ()
        """The tokens of the end that the last ``accept`` completed; empty if it completed none."""
        for token in budget.prefill:
            self.accept(token)

    @property
    def is_thinking(self) -> bool:
        return self._phase not in ("idle", "done")

    @property
    def forced_token(self) -> int:
        """What must come next; -1: anything."""
        forced = self._budget.forced
        return forced[self._num_forced] if self._phase == "forcing" and forced else -1

    def end(self) -> bool:
        """Ends reasoning now, as if the budget were used up; whether there was any to end."""
        if self._phase != "counting":
            return False
        self._force()
        return True

    def accept(self, token: int) -> None:
        self.ended_by = ()
        match self._phase:
            case "idle" | "done":
                if self._starts.accept(token):
                    self._begin()
            case "counting" | "waiting":
                self._count(token)
            case "forcing":
                self._num_forced += 1
                end = self._ends.accept(token)
                if self._num_forced >= len(self._budget.forced):
                    self._phase, self.ended_by = "done", end

    def _begin(self) -> None:
        self._phase, self._remaining = "counting", self._budget.tokens
        self._ends.reset()
        if self._remaining == 0:
            self._force()

    def _count(self, token: int) -> None:
        self.ended_by = self._ends.accept(token)
        if self.ended_by:
            self._phase = "done"
            return
        self._remaining -= 1
        if self._phase == "counting" and (self._budget.tokens < 0 or self._remaining > 0):
            return
        if _is_whole(self._piece(token)):
            self._force()
        elif self._phase == "counting":
            self._phase = "waiting"
            self._ends.reset()

    def _force(self) -> None:
        self._phase, self._num_forced = "forcing", 0
        self._ends.reset()
        if not self._budget.forced:
            self._phase = "done"


class _Matcher:
    """Finds sequences at the end of the tokens that it was given since it last found one."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        self._sequences = sorted((s for s in sequences if s), key=len, reverse=True)
        self._tail: deque[int] = deque(maxlen=max(map(len, self._sequences), default=1))

    def reset(self) -> None:
        self._tail.clear()

    def accept(self, token: int) -> tuple[int, ...]:
        """The longest sequence that ``token`` completes; empty if there is none."""
        self._tail.append(token)
        tail = tuple(self._tail)
        found = next((s for s in self._sequences if tail[-len(s) :] == s), ())
        if found:
            self.reset()
        return found


def _is_whole(piece: bytes) -> bool:
    """``piece`` does not end inside a character."""
    for back in range(1, min(4, len(piece)) + 1):
        byte = piece[-back]
        if byte & 0xC0 != 0x80:
            return back >= (
                2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
            )
    return True
