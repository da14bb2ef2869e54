"""The tasks that wait for slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlxserver.engine.task import Task

MAX_PASSED = 16
"""Tasks that may be started before an older one that waits for more than one free slot."""


class Deferred:
    """Oldest first. On a busy server slots are seldom free together, and a popular adapter is never idle:
    ``waits_for_more`` tells the tasks that need more than one slot, which must not starve."""

    def __init__(self, waits_for_more: Callable[[Task], bool]) -> None:
        self._waits_for_more = waits_for_more
        self._tasks: list[Task] = []
        self._passed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def add(self, task: Task) -> None:
        self._tasks.append(task)

    def leave(self, task_id: int) -> None:
        """A task was started; a newcomer's is started without ever having waited."""
        for task in self._tasks:
            if task.id == task_id:
                break
            if self._waits_for_more(task):
                self._passed[task.id] = self._passed.get(task.id, 0) + 1
        self.forget(task_id)

    def forget(self, task_id: int) -> None:
        self._tasks = [task for task in self._tasks if task.id != task_id]
        self._passed.pop(task_id, None)

    @property
    def first(self) -> Task | None:
        """The task that was passed often enough: none is started before it any more."""
        return next((task for task in self._tasks if self._passed.get(task.id, 0) >= MAX_PASSED), None)

    def in_turn(self, slot_id: int) -> list[Task]:
        """Those that asked for this slot, then the others."""
        return sorted(self._tasks, key=lambda task: task.id_slot != slot_id)
