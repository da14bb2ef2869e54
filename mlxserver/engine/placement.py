"""Which task gets which slot, at once or after waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlxserver.engine.adapter_room import AdapterRoom, names_of
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.deferred import Deferred
from mlxserver.engine.restores import Restores
from mlxserver.engine.selection import select_slot
from mlxserver.engine.slot import Slot, SlotState
from mlxserver.engine.task import Failed, Task


class Placement:
    """Puts tasks into slots; those that find none, or whose state is on its way from disk, wait in order."""

    def __init__(self, config: EngineConfig, slots: Sequence[Slot], restores: Restores) -> None:
        self._slots = slots
        self._restores = restores
        self._similarity = config.slot_prompt_similarity
        self._n_ctx = config.n_ctx_slot
        self._adapters = AdapterRoom(config.max_loras, slots)
        self.waiting = Deferred(lambda task: bool(task.children) or not self._adapters.has_room_for(task))
        self._has_placed = False

    def submit(self, task: Task) -> Failed | None:
        """Give the task a slot, or let it wait for one; the error of a task that can never run."""
        if refused := self._adapters.refusal(task):
            return refused
        if len(task.tokens) < self._n_ctx:  # a longer one is refused once it has a slot
            self._restores.enter(task)
        if self._may_pass(task) and self._place(task):
            self.waiting.leave(task.id)
        else:
            self.waiting.add(task)
        return None

    def forget(self, task_id: int) -> None:
        """The task waits no more."""
        self.waiting.forget(task_id)
        self._restores.leave(task_id)

    def place_waiting(self, slot: Slot | None = None) -> None:
        """Tasks that asked for this slot, which is free again, go first, then the oldest that fits."""
        while (first := self.waiting.first) and self._place(first):
            self.waiting.leave(first.id)
        for task in self.waiting.in_turn(slot.id if slot else -1):
            if not any(other.is_free for other in self._slots):
                return
            if self._may_pass(task) and self._place(task):
                self.waiting.leave(task.id)

    def adapters_in_use(self) -> set[str]:
        """Digests of the adapters of all tasks that run or wait."""
        return self._adapters.active().union(*(names_of(task) for task in self.waiting))

    def has_placed(self) -> bool:
        """Whether a task that needs cells was given a slot since the last call."""
        placed, self._has_placed = self._has_placed, False
        return placed

    def _may_pass(self, task: Task) -> bool:
        """Whether nobody has waited so long that this task must not be started before it.

        Who waits for an adapter's turn only needs that no other adapter is begun meanwhile.
        """
        first = self.waiting.first
        if first is None or first is task or self._restores.is_awaited(first.id):
            return True
        waits_for_adapter = not first.children and not self._adapters.has_room_for(first)
        return waits_for_adapter and not names_of(task)

    def _place(self, task: Task) -> bool:
        if not self._adapters.has_room_for(task):
            return False
        slot = select_slot(self._slots, task, self._similarity)
        if slot is None:
            return False
        others = [other for other in self._slots if other.is_free and other is not slot]
        if len(others) < len(task.children):
            return False
        if self._restores.holds(task, is_busy=not all(each.is_idle for each in self._slots)):
            return False
        self._has_placed |= not task.is_embedding
        _launch(slot, task, task.id)
        for child, (task_id, sampling) in zip(others, task.children, strict=False):
            _launch(child, replace(task, id=task_id, sampling=sampling, children=()), task_id)
            child.state, child.parent, child.family = SlotState.WAIT_PARENT, slot, task.id
            child.shares_prompt = slot.shares_prompt = True
            slot.children.append(child)
        return True


def _launch(slot: Slot, task: Task, task_id: int) -> None:
    slot.task, slot.task_id, slot.family = task, task_id, task_id
    slot.state = SlotState.STARTED
    slot.parent, slot.children, slot.shares_prompt = None, [], False
    slot.shifts = []
    slot.n_past = slot.n_prompt_done = slot.n_launched = 0
    slot.generated = []
