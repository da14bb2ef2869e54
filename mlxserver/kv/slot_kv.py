"""One buffer for the keys and values of a plain attention layer: a row for every slot.

A row holds the tokens of one slot from column 0 on. Rows join and leave a batch, are truncated and
rewound by changing an integer; nothing is padded and nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

GROWTH = 256
"""Columns by which a buffer grows at least."""


@dataclass(slots=True)
class RowSpan:
    """One row taking ``n_new`` tokens behind its first ``start``."""

    row: int
    start: int
    n_new: int

    @property
    def end(self) -> int:
        return self.start + self.n_new


@dataclass(slots=True)
class RowBlock:
    """The rows ``[lo, hi)`` taking one token each behind their ``starts``; shared by all layers of a step."""

    lo: int
    hi: int
    starts: tuple[int, ...]
    rows: mx.array = field(init=False)
    """(B,) row indices."""
    offsets: mx.array = field(init=False)
    """(B,) positions of the new tokens."""
    end: int = field(init=False)
    masks: dict[int | None, mx.array | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = mx.arange(self.lo, self.hi)
        self.offsets = mx.array(self.starts, dtype=mx.int32)
        self.end = max(self.starts) + 1

    def mask(self, window_size: int | None) -> mx.array | None:
        """(B, 1, 1, end), true where a row's own tokens are; None where every row sees every column."""
        if window_size not in self.masks:
            self.masks[window_size] = self._mask(window_size)
        return self.masks[window_size]

    def _mask(self, window_size: int | None) -> mx.array | None:
        uniform = min(self.starts) == max(self.starts)
        if uniform and (window_size is None or self.end <= window_size):
            return None
        columns = mx.arange(self.end)[None]
        position = self.offsets[:, None]
        mask = columns <= position
        if window_size is not None:
            mask = mask & (columns > position - window_size)
        return mask[:, None, None, :]


class SlotKV:
    """Buffers (rows, heads, columns, head_dim) in the KV types; keys and values may differ in width.

    ``n_columns`` of a buffer is the same for all rows: it grows with the longest one.
    """

    def __init__(self, key_type: mx.Dtype, value_type: mx.Dtype) -> None:
        self.key_type = key_type
        self.value_type = value_type
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    def reserve(self, n_rows: int, n_columns: int, keys: mx.array, values: mx.array) -> None:
        """Grow to ``n_rows`` x ``n_columns`` for tokens of the shapes of ``keys`` and ``values``."""
        self.keys = _grown(self.keys, n_rows, n_columns, keys, self.key_type)
        self.values = _grown(self.values, n_rows, n_columns, values, self.value_type)

    def read(self, row: int, start: int, end: int) -> tuple[mx.array, mx.array]:
        """A copy of a row's tokens ``[start, end)``: keys and values (1, heads, end - start, head_dim)."""
        assert self.keys is not None and self.values is not None
        place = (slice(row, row + 1), slice(None), slice(start, end))
        return mx.contiguous(self.keys[place]), mx.contiguous(self.values[place])

    def write(self, row: int, start: int, keys: mx.array, values: mx.array) -> None:
        """Put tokens in a row from column ``start`` on; ``keys`` and ``values`` must be evaluated."""
        end = start + keys.shape[2]
        self.reserve(row + 1, end, keys, values)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, start:end] = keys
        self.values[row : row + 1, :, start:end] = values

    def fits(self, keys: mx.array, values: mx.array, n: int) -> bool:
        """Whether ``n`` tokens could be written to a row."""
        pairs = ((keys, self.keys, self.key_type), (values, self.values, self.value_type))
        return all(
            array.ndim == 4
            and array.dtype == dtype
            and (array.shape[0], array.shape[2]) == (1, n)
            and (buffer is None or (array.shape[1], array.shape[3]) == (buffer.shape[1], buffer.shape[3]))
            for array, buffer, dtype in pairs
        )

    def swap(self, a: int, b: int, n_a: int, n_b: int) -> None:
        """Exchange two rows that hold ``n_a`` and ``n_b`` tokens."""
        if self.keys is None or self.values is None:
            return
        self.reserve(max(a, b) + 1, max(n_a, n_b, 1), self.keys, self.values)
        held = [
            mx.contiguous(buffer[row : row + 1, :, :n])
            for buffer in (self.keys, self.values)
            for row, n in ((a, n_a), (b, n_b))
        ]
        mx.eval(held)
        self.keys[b : b + 1, :, :n_a], self.keys[a : a + 1, :, :n_b] = held[0], held[1]
        self.values[b : b + 1, :, :n_a], self.values[a : a + 1, :, :n_b] = held[2], held[3]

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self.keys, self.values) if array is not None]


class RowView:
    """A row of a SlotKV as the cache of a prompt chunk with a batch of 1 (mlx-lm's cache protocol)."""

    def __init__(self, layer: SlotKV, span: RowSpan) -> None:
        self._layer = layer
        self._span = span
        self.offset = span.start

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        layer, span = self._layer, self._span
        layer.reserve(span.row + 1, span.end, keys, values)
        assert layer.keys is not None and layer.values is not None
        row = slice(span.row, span.row + 1)
        layer.keys[row, :, span.start : span.end] = keys.astype(layer.key_type)
        layer.values[row, :, span.start : span.end] = values.astype(layer.value_type)
        self.offset = span.end
        return (
            layer.keys[row, :, : span.end].astype(keys.dtype),
            layer.values[row, :, : span.end].astype(values.dtype),
        )

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        from mlx_lm.models.cache import create_attention_mask

        return create_attention_mask(N, self._span.start, return_array, window_size)


class BlockView:
    """Rows of a SlotKV as the cache of one decode step (mlx-lm's batch cache protocol)."""

    def __init__(self, layer: SlotKV, block: RowBlock) -> None:
        self._layer = layer
        self._block = block
        self.offset = block.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        layer, block = self._layer, self._block
        layer.reserve(block.hi, block.end, keys, values)
        assert layer.keys is not None and layer.values is not None
        layer.keys[block.rows, :, block.offsets] = keys[:, :, 0].astype(layer.key_type)
        layer.values[block.rows, :, block.offsets] = values[:, :, 0].astype(layer.value_type)
        rows = slice(block.lo, block.hi)
        return (
            layer.keys[rows, :, : block.end].astype(keys.dtype),
            layer.values[rows, :, : block.end].astype(values.dtype),
        )

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        return self._block.mask(window_size)


def _grown(buffer: mx.array | None, n_rows: int, n_columns: int, like: mx.array, dtype: mx.Dtype) -> mx.array:
    if buffer is None:
        columns = -(-n_columns // GROWTH) * GROWTH
        return mx.zeros((n_rows, like.shape[1], columns, like.shape[3]), dtype=dtype)
    rows, heads, columns, width = buffer.shape
    if n_rows > rows:
        more = mx.zeros((n_rows - rows, heads, columns, width), dtype=dtype)
        buffer = mx.concatenate([buffer, more], axis=0)
    if n_columns > columns:
        # a quarter more than before at least, so that a long generation copies its buffer seldom
        wanted = max(n_columns, columns + columns // 4)
        extra = -(-wanted // GROWTH) * GROWTH - columns
        more = mx.zeros((buffer.shape[0], heads, extra, width), dtype=dtype)
        buffer = mx.concatenate([buffer, more], axis=2)
    return buffer
