"""One buffer for the keys and values of a plain attention layer: a row for every slot.

A row holds the tokens of one slot from column 0 on. Rows join and leave a batch, are truncated and
rewound by changing an integer; nothing is padded and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlxserver.kv.kv_type import KVType, Parts
from mlxserver.kv.spans import bytes_per_token

GROWTH = 64
"""The columns of a buffer are a multiple of this."""


@dataclass(slots=True)
class RowSpan:
    """One row taking ``n_new`` tokens behind its first ``start``."""

    row: int
    start: int
    n_new: int
    finite: bool = False
    """Other numbers are held as 0. A masked column is multiplied by 0, which an infinite one survives:
    it would reach whatever shorter row has this one's place in a later batch."""

    @property
    def end(self) -> int:
        return self.start + self.n_new


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a step of the rows ``[lo, hi)`` costs and what its graph depends on.

    Those rows take one token each in buffers of ``n_rows`` x ``n_columns``, and read ``end`` columns.
    """

    lo: int
    hi: int
    end: int
    n_rows: int
    n_columns: int


@dataclass(slots=True)
class RowBlock:
    """The rows ``[lo, hi)`` taking one token each; shared by all layers of a step."""

    lo: int
    hi: int
    offsets: mx.array
    """(B,) positions of the new tokens."""
    end: int
    """Columns that are read: one more than the largest position at least."""
    is_even: bool = False
    """All rows are equally long, and ``end`` is just behind their new tokens."""
    finite: bool = False
    """As of a RowSpan."""
    masks: dict[int | None, mx.array | None] = field(init=False, default_factory=dict)

    @staticmethod
    def of(rows: Sequence[int], lengths: Sequence[int], finite: bool = False) -> RowBlock:
        """Neighbouring rows that hold so many tokens."""
        offsets = mx.array(list(lengths), dtype=mx.int32)
        is_even = min(lengths) == max(lengths)
        return RowBlock(rows[0], rows[-1] + 1, offsets, max(lengths) + 1, is_even, finite)

    def put(self, buffer: mx.array, part: mx.array) -> mx.array:
        """``buffer`` with the rows' tokens of ``part`` (B, heads, 1, width), by few operations."""
        if self.is_even:
            buffer[self.lo : self.hi, :, self.end - 1 : self.end] = part
        elif self.hi - self.lo == buffer.shape[0]:
            columns = mx.broadcast_to(self.offsets[:, None, None, None], part.shape)
            return mx.put_along_axis(buffer, columns, part, axis=2)
        else:
            buffer[mx.arange(self.lo, self.hi), :, self.offsets] = part[:, :, 0]
        return buffer

    def mask(self, window_size: int | None) -> mx.array | None:
        """(B, 1, 1, end), true where a row's own tokens are; None where every row sees every column."""
        if window_size not in self.masks:
            self.masks[window_size] = self._mask(window_size)
        return self.masks[window_size]

    def _mask(self, window_size: int | None) -> mx.array | None:
        if self.is_even and (window_size is None or self.end <= window_size):
            return None
        columns = mx.arange(self.end)[None]
        position = self.offsets[:, None]
        mask = columns <= position
        if window_size is not None:
            mask = mask & (columns > position - window_size)
        return mask[:, None, None, :]


class SlotKV:
    """Buffers (rows, heads, columns, width) for the parts of keys and of values, which may differ in width.

    ``n_columns`` of a buffer is the same for all rows: it grows with the longest one.
    """

    def __init__(self, key_type: KVType, value_type: KVType) -> None:
        self.key_type = key_type
        self.value_type = value_type
        self.keys: Parts = ()
        self.values: Parts = ()
        self.n_expected = 0
        """Columns that the first tokens are given at least."""

    def lacks(self, n_rows: int, n_columns: int) -> bool:
        """Whether it has to grow for so many rows and columns; not before the first token."""
        if not self.keys:
            return False
        rows, _, columns, _ = self.keys[0].shape
        return n_rows > rows or n_columns > columns

    def reserve(self, n_rows: int, n_columns: int, keys: Parts, values: Parts) -> None:
        """Grow to ``n_rows`` x ``n_columns`` for tokens shaped and typed like ``keys`` and ``values``."""
        if not self.keys:
            n_columns = max(n_columns, self.n_expected)
        elif not self.lacks(n_rows, n_columns):
            return
        self.keys = _grown(self.keys, n_rows, n_columns, keys)
        self.values = _grown(self.values, n_rows, n_columns, values)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the buffers; zeros before the first token."""
        return (self.keys[0].shape[0], self.keys[0].shape[2]) if self.keys else (0, 0)

    @property
    def bytes_per_token(self) -> int:
        """0 before the first token."""
        return bytes_per_token(self.arrays)

    @property
    def numbers_per_token(self) -> int:
        """Of keys and values as the model reads them."""
        parts = ((self.key_type, self.keys), (self.value_type, self.values))
        return sum(
            held[0].shape[1] * held[0].shape[3] * 32 // (kind.bits or 32) for kind, held in parts if held
        )

    def shrink(self, n_rows: int, n_columns: int) -> None:
        """Give back what is beyond so many rows and columns, of which at least some are left."""
        place = (slice(max(1, n_rows)), slice(None), slice(grown_columns(0, max(1, n_columns))))
        self.keys = tuple(mx.contiguous(buffer[place]) for buffer in self.keys)
        self.values = tuple(mx.contiguous(buffer[place]) for buffer in self.values)

    def read(self, row: int, start: int, end: int) -> tuple[Parts, Parts]:
        """A copy of a row's tokens ``[start, end)``: the parts of keys and values, (1, heads, n, width)."""
        place = (slice(row, row + 1), slice(None), slice(start, end))
        keys = tuple(mx.contiguous(buffer[place]) for buffer in self.keys)
        return keys, tuple(mx.contiguous(buffer[place]) for buffer in self.values)

    def write(self, row: int, start: int, keys: Parts, values: Parts) -> None:
        """Put tokens in a row from column ``start`` on; no part may be a pending view of a buffer."""
        end = start + keys[0].shape[2]
        self.reserve(row + 1, end, keys, values)
        for buffer, part in self._pairs(keys, values):
            buffer[row : row + 1, :, start:end] = part

    def write_rows(self, block: RowBlock, keys: Parts, values: Parts) -> None:
        """Put one token (B, heads, 1, width) in each row of a block."""
        self.reserve(block.hi, block.end, keys, values)
        self.keys = tuple(map(block.put, self.keys, keys))
        self.values = tuple(map(block.put, self.values, values))

    def encode(self, keys: mx.array, values: mx.array, finite: bool) -> tuple[Parts, Parts]:
        """Keys and values as they are held."""
        return self.key_type.encode(keys, finite), self.value_type.encode(values, finite)

    def decode(
        self, rows: slice, end: int, key_dtype: mx.Dtype, value_dtype: mx.Dtype
    ) -> tuple[mx.array, mx.array]:
        """The keys and values of the rows' first ``end`` tokens, (rows, heads, end, head_dim)."""
        place = (rows, slice(None), slice(end))
        keys, values = (tuple(buffer[place] for buffer in held) for held in (self.keys, self.values))
        return self.numbers(keys, values, key_dtype, value_dtype)

    def numbers(
        self, keys: Parts, values: Parts, key_dtype: mx.Dtype, value_dtype: mx.Dtype
    ) -> tuple[mx.array, mx.array]:
        """What parts of the buffers hold."""
        return self.key_type.decode(keys, key_dtype), self.value_type.decode(values, value_dtype)

    def fits(self, keys: Parts, values: Parts, n: int) -> bool:
        """Whether these parts are ``n`` tokens that could be written to a row."""
        return (
            all(part.ndim == 4 and (part.shape[0], part.shape[2]) == (1, n) for part in (*keys, *values))
            and (self.key_type.holds(keys) and self.value_type.holds(values))
            and all(
                (part.shape[1], part.shape[3]) == (buffer.shape[1], buffer.shape[3])
                for buffer, part in self._pairs(keys, values)
            )
        )

    def swap(self, a: int, b: int, n_a: int, n_b: int) -> None:
        """Exchange two rows that hold ``n_a`` and ``n_b`` tokens."""
        if not self.keys:
            return
        self.reserve(max(a, b) + 1, max(n_a, n_b, 1), self.keys, self.values)
        held = self.read(a, 0, n_a), self.read(b, 0, n_b)
        mx.eval(held)
        self.write(b, 0, *held[0])
        self.write(a, 0, *held[1])
        mx.eval(self.arrays)  # what was held is not needed for longer than that

    def _pairs(self, keys: Parts, values: Parts) -> Iterator[tuple[mx.array, mx.array]]:
        """Each buffer with the part that belongs in it; nothing before the first token."""
        return zip((*self.keys, *self.values), (*keys, *values), strict=False)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.keys, *self.values]


class RowView:
    """A row of a SlotKV as the cache of a prompt chunk with a batch of 1 (mlx-lm's cache protocol)."""

    def __init__(self, layer: SlotKV, span: RowSpan) -> None:
        self._layer = layer
        self._span = span
        self.offset = span.start

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        layer, span = self._layer, self._span
        held = layer.encode(keys, values, span.finite)
        layer.write(span.row, span.start, *held)
        self.offset = span.end
        return layer.decode(slice(span.row, span.row + 1), span.end, keys.dtype, values.dtype)

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
        layer.write_rows(block, *layer.encode(keys, values, block.finite))
        return layer.decode(slice(block.lo, block.hi), block.end, keys.dtype, values.dtype)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        return self._block.mask(window_size)


def _grown(buffers: Parts, n_rows: int, n_columns: int, like: Parts) -> Parts:
    if not buffers:
        return tuple(_empty(part, n_rows, grown_columns(0, n_columns)) for part in like)
    return tuple(_larger(buffer, n_rows, n_columns) for buffer in buffers)


def _larger(buffer: mx.array, n_rows: int, n_columns: int) -> mx.array:
    rows, _, columns, _ = buffer.shape
    if n_rows <= rows and n_columns <= columns:
        return buffer
    larger = _empty(buffer, max(rows, n_rows), grown_columns(columns, n_columns))
    larger[:rows, :, :columns] = buffer  # in place: a concatenation writes everything twice
    return larger


def grown_columns(columns: int, wanted: int) -> int:
    """Columns of a buffer that has grown to at least so many."""
    if wanted <= columns:
        return columns
    # an eighth more than before at least, so that a long generation copies its buffer seldom
    return -(-max(wanted, columns + columns // 8) // GROWTH) * GROWTH


def _empty(like: mx.array, n_rows: int, n_columns: int) -> mx.array:
    return mx.zeros((n_rows, like.shape[1], n_columns, like.shape[3]), dtype=like.dtype)
