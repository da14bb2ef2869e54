"""A chat completion that runs, as others may find it by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxserver.api.completion_runner import Completions


@dataclass(eq=False, slots=True, weakref_slot=True)
class RunningChat:
    """Kept by its dialect, so that it is gone when the response is."""

    completions: Completions
    reasoning_control: bool
