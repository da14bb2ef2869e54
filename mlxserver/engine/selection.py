"""Which slot a new task gets (reference rules: requested id, similarity, least recently used)."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.slot import Slot
from mlxserver.engine.task import Task
from mlxserver.kv.prefix import common_prefix


def select_slot(slots: Sequence[Slot], task: Task, similarity: float) -> Slot | None:
    """The slot for a prompt, or None when the task has to wait.

    ``similarity`` is the least share of the prompt that a slot's state must already hold (0 turns it off).
    """
    if task.id_slot >= 0:
        slot = slots[task.id_slot % len(slots)]
        return slot if slot.is_free else None
    return _most_similar(slots, task, similarity) or _least_recently_used(slots)


def _most_similar(slots: Sequence[Slot], task: Task, threshold: float) -> Slot | None:
    best, best_similarity = None, 0.0
    if threshold == 0 or not task.tokens:
        return None
    for slot in slots:
        if slot.is_free and slot.tokens and slot.identity == task.identity:
            similarity = common_prefix(slot.tokens, task.tokens) / len(task.tokens)
            if similarity > best_similarity and similarity > threshold:
                best, best_similarity = slot, similarity
    return best


def _least_recently_used(slots: Sequence[Slot]) -> Slot | None:
    """Ties go to the highest id, so that a fresh server fills its slots from the last one on."""
    idle = [slot for slot in slots if slot.is_free]
    return min(idle, key=lambda slot: (slot.t_last_used, -slot.id), default=None)
