"""A family of models that write their answers alike, and how its templates are told from others."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.chat.formats.calls import CallFormat


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    marks: tuple[str, ...]
    """All of these occur in the template or in what it makes of a call."""
    calls: CallFormat
    absent: tuple[str, ...] = ()
    """None of these does."""
    without_calls: CallFormat | None = None
    """Reads answers that are not searched for calls, where they are more than content."""

    def knows(self, shown: str) -> bool:
        return all(mark in shown for mark in self.marks) and not any(mark in shown for mark in self.absent)
