"""One Server-Sent Event as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxserver.api.json_body import dump_json


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event of the APIs that name theirs."""

    name: str
    data: Any


def frame(event: Any) -> bytes:
    """A JSON value, with its name where it is a ``NamedEvent``."""
    if isinstance(event, NamedEvent):
        return f"event: {event.name}\n".encode() + text_frame(dump_json(event.data))
    return text_frame(dump_json(event))


def text_frame(text: str) -> bytes:
    """An event whose data is one line of text."""
    return f"data: {text}\n\n".encode()
