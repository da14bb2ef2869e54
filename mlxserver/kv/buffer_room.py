"""Room in the buffers of the plain layers, which all have the same rows and columns."""

from __future__ import annotations

import time
from collections.abc import Sequence

import mlx.core as mx

from mlxserver.kv.memory import MIB, MemoryBudget
from mlxserver.kv.slot_kv import SlotKV, grown_columns

MOST_AT_ONCE = 16 * MIB
"""Bytes of buffers that are there in no time."""


class BufferRoom:
    """Asks the budget before it takes any.

    The first layer grows last: its buffers tell how large all are at least.
    """

    def __init__(self, layers: Sequence[SlotKV], budget: MemoryBudget) -> None:
        self._layers = layers
        self._budget = budget

    def growth(self, n_rows: int, n_columns: int) -> int:
        """Bytes that the buffers need more, for a while at least, to have so many rows and columns."""
        if not self._layers:
            return 0
        rows, columns = self._layers[0].shape
        if n_rows <= rows and n_columns <= columns:
            return 0
        n_rows, n_columns = max(rows, n_rows), grown_columns(columns, n_columns)
        costs, n_cells = self._budget.costs, n_rows * n_columns
        # a step may be under way, and one follows
        return (
            costs.kv * (n_cells - rows * columns) + costs.layer_kv * n_cells + costs.step(n_rows, n_columns)
        )

    @property
    def is_even(self) -> bool:
        """Whether the buffers of all layers are equally large."""
        return not self._layers or self._layers[0].shape == self._layers[-1].shape

    def takes_long(self, n_rows: int, n_columns: int) -> bool:
        """Whether growing to so many rows and columns at once would be felt."""
        if not self._layers or not self._layers[0].lacks(n_rows, n_columns):
            return False
        rows, columns = self._layers[0].shape
        n_cells = max(rows, n_rows) * grown_columns(columns, n_columns)
        return n_cells * sum(layer.bytes_per_token for layer in self._layers) > MOST_AT_ONCE

    def make(self, n_rows: int, n_columns: int, seconds: float | None = None) -> None:
        """One layer after the other: two buffers of one layer are there at a time, not of all layers.

        ``seconds``: after so long another call goes on. Raises OutOfMemory, and changes nothing, where there
        is no room.
        """
        begin = time.perf_counter()
        if self._layers and self._layers[0].lacks(n_rows, n_columns):
            rows, columns = self._layers[-1].shape  # where a call before did not come to its end
            n_rows, n_columns = max(rows, n_rows), max(columns, n_columns)
        lacking = [layer for layer in reversed(self._layers) if layer.lacks(n_rows, n_columns)]
        if nbytes := self.growth(n_rows, n_columns):
            left = len(lacking) / len(self._layers) if lacking else 1  # before the first token none lacks any
            self._budget.claim(int(nbytes * left), f"the state of {n_rows} slots of {n_columns} tokens")
        for layer in self._layers:
            layer.n_expected = n_columns
        for layer in lacking:
            layer.reserve(n_rows, n_columns, layer.keys, layer.values)
            mx.eval(layer.arrays)
            if seconds is not None and time.perf_counter() - begin > seconds:
                return

    def shrink(self, n_rows: int, n_columns: int) -> None:
        """Give back what is beyond so many rows and columns."""
        for layer in self._layers:
            if layer.keys:
                layer.shrink(n_rows, n_columns)
                mx.eval(layer.arrays)
