"""The pool of cells that all slots share with ``--kv-unified``: who gives up what when it runs out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.plan import Cut, Move
from mlxserver.engine.reuse import Reuse
from mlxserver.engine.slot import Slot, SlotState

ACTIVE = (SlotState.PROMPT, SlotState.GENERATING)


class Cells:
    """Without a common pool every slot has cells of its own, and nothing here does anything."""

    def __init__(self, config: EngineConfig, slots: Sequence[Slot], reuse: Reuse) -> None:
        self._config = config
        self._slots = slots
        self._reuse = reuse

    def has_room_for(self, slot: Slot) -> bool:
        """Whether a prompt can begin beside what runs; alone it always can."""
        active = [other for other in self._slots if other.state in ACTIVE]
        if not self._config.kv_unified or not active:
            return True
        wanted = sum(max(each.n_cells, each.n_prompt) + 1 for each in (*active, slot))
        return wanted - _shared(active) <= self._config.n_ctx

    def tidy(self) -> list[Move]:
        """After a task was launched: store what idle slots hold, and free their cells."""
        if not (self._config.cache_idle_slots and self._config.kv_unified):
            return []
        return self.empty(slot for slot in self._slots if slot.is_idle)

    def empty(self, slots: Iterable[Slot]) -> list[Move]:
        """Store what they hold, and free their cells."""
        return [move for slot in slots if slot.tokens for move in self._empty(slot)]

    def make_room(self) -> tuple[list[Move], list[Slot]]:
        """(moves, slots whose tasks must fail): what no task uses goes first, then the youngest task."""
        moves: list[Move] = []
        failing: list[Slot] = []
        while self._config.kv_unified and self._wanted(failing) > self._config.n_ctx:
            useless = [slot for slot in self._slots if slot.state not in ACTIVE and slot.tokens]
            if useless:
                moves += self._empty(min(useless, key=lambda slot: not slot.is_idle))
                continue
            active = [slot for slot in self._slots if slot.state in ACTIVE and slot not in failing]
            failing.append(max(active, key=lambda slot: slot.t_start))
        return moves, failing

    def _wanted(self, failing: Sequence[Slot]) -> int:
        """Cells that are taken, and those that the next step may take."""
        n_batch = self._config.n_batch
        slots = [slot for slot in self._slots if slot not in failing]
        return sum(slot.n_cells + slot.n_next(n_batch) for slot in slots) - _shared(slots)

    def _empty(self, slot: Slot) -> list[Move]:
        moves = [*self._reuse.keep(slot), Cut(slot.id, slot.task_id, 0)]
        slot.tokens = []
        return moves


def _shared(slots: Sequence[Slot]) -> int:
    """Cells that several slots count: completions of one prompt have its cells in common."""
    prompts: dict[int, list[int]] = {}
    for slot in slots:
        if slot.state is SlotState.GENERATING:
            prompts.setdefault(slot.family, []).append(slot.n_prompt)
    return sum(sum(family[1:]) for family in prompts.values())
