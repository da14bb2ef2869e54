"""What the event loop may ask of the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxserver.engine.reader import Arrived
from mlxserver.engine.task import Task

ENGINE_THREAD = "engine"
"""The thread's name."""

SlotActionKind = Literal["save", "restore", "erase"]


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
class EndReasoning:
    """A task whose reasoning may be ended is to end it now, if it is at it."""

    task_id: int


@dataclass(frozen=True, slots=True)
class SlotAction:
    """Save, restore or erase a slot once it is idle. ``reply`` gets the outcome on the engine thread."""

    kind: SlotActionKind
    slot: int
    path: Path | None
    reply: Callable[[SlotOutcome], None]


@dataclass(frozen=True, slots=True)
class SlotOutcome:
    """``n_tokens`` saved, restored or erased; ``n_bytes`` written or read; ``error`` says why it failed."""

    n_tokens: int = 0
    n_bytes: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What is known of an adapter beside its weights, which ``digest`` names.

    ``invocation``: the tokens that begin its use in a prompt (aLoRA); without any it is used throughout.
    """

    path: str
    digest: str
    task_name: str = ""
    prompt_prefix: str = ""
    invocation: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Put an adapter beside the model. ``reply`` gets it, or why not, on the engine thread."""

    path: str
    reply: Callable[[AdapterInfo | str], None]


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Give back an adapter that was loaded once; its weights go when nobody has it and no task uses it."""

    digest: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Something has happened elsewhere that the engine is to tell of."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the thread after the step that it is in."""


Message = (
    Submit
    | Cancel
    | StopAt
    | EndReasoning
    | SlotAction
    | LoadAdapter
    | UnloadAdapter
    | Arrived
    | Wake
    | Close
)
