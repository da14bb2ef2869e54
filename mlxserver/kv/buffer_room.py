"""Room in the buffers of the plain layers, which all have the same rows and columns."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from mlxserver.kv.memory import MemoryBudget
from mlxserver.kv.slot_kv import SlotKV, grown_columns


class BufferRoom:
    """Asks the budget before it takes any."""

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

    def make(self, n_rows: int, n_columns: int) -> None:
        """One layer after the other: two buffers of one layer are there at a time, not of all layers.

        Raises OutOfMemory, and changes nothing, where there is no room.
        """
        if nbytes := self.growth(n_rows, n_columns):
            self._budget.claim(nbytes, f"the state of {n_rows} slots of {n_columns} tokens")
        for layer in self._layers:
            layer.n_expected = n_columns
            if layer.lacks(n_rows, n_columns):
                layer.reserve(n_rows, n_columns, layer.keys, layer.values)
                mx.eval(layer.arrays)

    def shrink(self, n_rows: int, n_columns: int) -> None:
        """Give back what is beyond so many rows and columns."""
        for layer in self._layers:
            if layer.keys:
                layer.shrink(n_rows, n_columns)
                mx.eval(layer.arrays)
