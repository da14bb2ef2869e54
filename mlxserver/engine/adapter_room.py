"""``--max-loras``: how many different adapters may be at work in one step, and who waits for it."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.slot import Slot
from mlxserver.engine.task import Failed, Task


class AdapterRoom:
    """``most`` adapters are in use by all slots together; 0: any number. The base model is none."""

    def __init__(self, most: int, slots: Sequence[Slot]) -> None:
        self._most = most
        self._slots = slots

    def refusal(self, task: Task) -> Failed | None:
        """Why a task can never run."""
        n = len(names_of(task))
        if self._most == 0 or n <= self._most:
            return None
        message = f"the request uses {n} LoRA adapters, but --max-loras is {self._most}"
        return Failed(task.id, "invalid_request_error", message)

    def has_room_for(self, task: Task) -> bool:
        """Whether the task brings no adapter beyond the bound to those that are at work."""
        wanted = names_of(task)
        if self._most == 0 or not wanted:
            return True
        active = self.active()
        return wanted <= active or len(wanted | active) <= self._most

    def active(self) -> set[str]:
        """Digests of the adapters of all slots at work."""
        tasks = [slot.task for slot in self._slots if not slot.is_idle and slot.task]
        return {name for task in tasks for name in names_of(task)}


def names_of(task: Task) -> set[str]:
    """Digests of a task's adapters, whatever their scales."""
    return {digest for digest, _ in (*task.identity.adapters, *task.invoked)}
