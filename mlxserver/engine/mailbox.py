"""What the event loop may ask of the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.engine.task import Task


@dataclass(frozen=True, slots=True)
class Submit:
    task: Task


@dataclass(frozen=True, slots=True)
class Cancel:
    """Free the task's slot, or its place in the queue; no event answers."""

    task_id: int


@dataclass(frozen=True, slots=True)
class StopAt:
    """The text of a task ended with its ``n_generated``-th token."""

    task_id: int
    n_generated: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the thread after the step that it is in."""


Message = Submit | Cancel | StopAt | Close
