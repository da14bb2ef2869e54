"""``--context-shift``: when a slot's context is full, old tokens go and those behind them move up."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.plan import Discard, Move
from mlxserver.engine.slot import Shift, Slot, SlotState
from mlxserver.engine.task import Task

MARGIN = 4
"""Tokens of the context that are never among those to keep."""
NO_SHIFT = "context shift cannot be used for shared prompt"


class ContextShifts:
    """Without the option the slots end at their limit, and nothing here does anything."""

    def __init__(self, config: EngineConfig, slots: Sequence[Slot], adds_bos: bool) -> None:
        self._config = config
        self._slots = slots
        self._adds_bos = adds_bos

    def plan(self) -> tuple[list[Move], list[Slot]]:
        """(moves, slots whose tasks must fail) before the next token of the slots that are full."""
        full = [slot for slot in self._slots if _is_full(slot)] if self._config.context_shift else []
        failing = [slot for slot in full if slot.shares_prompt]
        return [self._shift(slot) for slot in full if not slot.shares_prompt], failing

    def _shift(self, slot: Slot) -> Move:
        assert slot.task is not None
        shift = shift_of(slot.task, slot.n_cells, slot.n_ctx, self._adds_bos, slot.n_launched)
        slot.discard(shift)
        return Discard(slot.id, slot.task_id, shift.n_keep, shift.n_discard)


def _is_full(slot: Slot) -> bool:
    if slot.state is not SlotState.GENERATING or not 0 < slot.n_launched < slot.limit:
        return False
    return slot.n_cells + 1 >= slot.n_ctx


def shift_of(task: Task, n_tokens: int, n_ctx: int, adds_bos: bool, n_launched: int) -> Shift:
    """What goes of ``n_tokens``, as llama-server reckons it; at least the last token stays."""
    n_keep = len(task.tokens) if task.n_keep < 0 else task.n_keep
    n_keep = min(n_ctx - MARGIN, n_keep + adds_bos)
    n_left = n_tokens - n_keep
    n_discard = task.n_discard or n_left // 2
    return Shift(n_keep, min(max(0, n_discard), max(0, n_left - 1)), n_launched)
