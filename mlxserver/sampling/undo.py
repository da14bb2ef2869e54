"""What sampling a token changes of the rows' samplers, so that a step that fails may be tried again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxserver.sampling.row import Row


class Undo:
    """Notes the rows as they are; ``put_back`` makes them that again.

    A token that a grammar or budget took in stays: it is the one before the step.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._parts = [
            (part, name, _handle(getattr(part, name)))
            for row in rows
            for part in row.parts()
            for name in part.CHANGES
        ]
        self._newest = [(row, row.newest) for row in rows]

    def put_back(self) -> None:
        for part, name, value in self._parts:
            setattr(part, name, value)
        for row, newest in self._newest:
            if row.newest is not newest:
                row.newest = None


def _handle(value: Any) -> Any:
    """Of an array another handle: what is assigned into changes what the one at hand stands for."""
    return mx.array(value) if isinstance(value, mx.array) else value
