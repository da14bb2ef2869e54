"""A slot: one sequence's place in the engine, and the task that it works on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

from mlxserver.engine.task import SlotView, Task
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity


class SlotState(Enum):
    IDLE = "idle"
    STARTED = "started"
    PROMPT = "processing prompt"
    WAIT_PARENT = "wait for parent"
    GENERATING = "generating"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Shift:
    """``n_discard`` tokens behind the first ``n_keep`` went after the slot had asked for ``n_launched``."""

    n_keep: int
    n_discard: int
    n_launched: int


@dataclass(slots=True)
class Slot:
    """``tokens`` are those whose state the slot holds, as far as they are known on the host.

    While generating, steps run ahead of the tokens that came back: ``n_launched`` counts the sampled
    tokens asked for, ``generated`` holds those that arrived.
    """

    id: int
    n_ctx: int
    shifts_context: bool = False
    state: SlotState = SlotState.IDLE
    tokens: list[int] = field(default_factory=list)
    exact_until: int | None = None
    """Tokens up to the first whose state came from another position, or from an adapter that was invoked
    there; None where none did."""
    identity: CacheIdentity = BASE_IDENTITY
    """Whose state it is, up to ``n_exact``."""
    t_last_used: float = -1.0

    is_reserved: bool = False
    """A slot action waits for the slot; no task gets it before."""

    task: Task | None = None
    task_id: int = -1
    family: int = -1
    """The task whose prompt it is: its own, or its parent's."""
    parent: Slot | None = None
    children: list[Slot] = field(default_factory=list)
    shares_prompt: bool = False

    n_past: int = 0
    """Prompt tokens taken over from the slot's earlier state."""
    n_prompt_done: int = 0
    n_launched: int = 0
    shifts: list[Shift] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    t_start: float = 0.0
    t_first: float = 0.0
    t_last: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.state is SlotState.IDLE

    @property
    def is_free(self) -> bool:
        return self.is_idle and not self.is_reserved

    @property
    def n_prompt(self) -> int:
        return len(self.task.tokens) if self.task else 0

    @property
    def limit(self) -> int:
        """Tokens that may be sampled: the request's bound or the room in the context."""
        assert self.task is not None
        room = sys.maxsize if self.shifts_context else self.n_ctx - self.n_prompt
        return room if self.task.n_predict < 0 else min(room, max(1, self.task.n_predict))

    @property
    def is_invoked(self) -> bool:
        """What the slot holds behind its exact tokens is an adapter's, and of no use to others."""
        return not self.is_idle and self.task is not None and bool(self.task.invoked)

    @property
    def n_exact(self) -> int:
        """Of ``tokens``, the first ones whose state is what a cold evaluation gives."""
        return len(self.tokens) if self.exact_until is None else min(self.exact_until, len(self.tokens))

    def n_discarded(self, n_generated: int | None = None) -> int:
        """Tokens that context shifts took away before the last of ``n_generated`` was sampled."""
        return sum(s.n_discard for s in self.shifts if n_generated is None or s.n_launched < n_generated)

    @property
    def n_cells(self) -> int:
        """Cells that the slot's state takes, steps in flight included."""
        if self.state is SlotState.GENERATING:
            return self.n_prompt + max(0, self.n_launched - 1) - self.n_discarded()
        return len(self.tokens)

    def n_kept(self, n_generated: int) -> int:
        """Cells that stay when the task ends with so many tokens, although more may be asked for."""
        kept = self.n_prompt + max(0, n_generated - 1) - self.n_discarded(n_generated)
        ahead = (shift.n_keep for shift in self.shifts if shift.n_launched >= n_generated)
        return min(kept, *ahead, kept)  # a shift made for a token that never was

    def discard(self, shift: Shift) -> None:
        """Forget what a context shift takes away; the tokens behind move up."""
        self.shifts.append(shift)
        if shift.n_discard:
            self.exact_until = min(self.n_exact, shift.n_keep)
            del self.tokens[shift.n_keep : shift.n_keep + shift.n_discard]

    def n_next(self, n_batch: int) -> int:
        """Cells that the next step may add."""
        if self.state is SlotState.GENERATING:
            return 1
        return min(self.n_prompt - self.n_prompt_done, n_batch) if self.state is SlotState.PROMPT else 0

    def view(self, with_tokens: bool) -> SlotView:
        busy = not self.is_idle
        n_remain = -1
        if busy and self.task is not None and self.task.n_predict >= 0:
            n_remain = max(1, self.task.n_predict) - len(self.generated)
        return SlotView(
            id=self.id,
            n_ctx=self.n_ctx,
            is_processing=busy,
            task_id=self.task_id,
            n_prompt_tokens=self.n_prompt if self.task and self.task.is_embedding else len(self.tokens),
            n_prompt_tokens_processed=self.n_prompt_done - self.n_past if busy else 0,
            n_prompt_tokens_cache=self.n_past if busy else 0,
            settings=self.task.settings if self.task else None,
            adapters=self.task.adapters if self.task else (),
            has_next_token=busy,
            n_remain=n_remain,
            n_decoded=len(self.generated) if busy else 0,
            prompt=self.task.tokens if with_tokens and self.task else (),
            generated=tuple(self.generated) if with_tokens else (),
        )
