"""Chunks of several prompts as one batch: each row goes on from its own length by a number of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mlxserver.kv.slot_kv import RowSpan, SlotKV


@dataclass(slots=True)
class PromptBlock:
    """One span a row, rows in any order; shared by all layers of a pass. Short chunks are padded behind."""

    spans: tuple[RowSpan, ...]
    offsets: mx.array = field(init=False)
    """(B,) positions of the first new tokens."""
    n_new: int = field(init=False)
    """N, tokens of the longest chunk."""
    end: int = field(init=False)
    """E, columns of the longest row."""
    masks: dict[int | None, mx.array] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = mx.array([span.start for span in self.spans], dtype=mx.int32)
        self.n_new = max(span.n_new for span in self.spans)
        self.end = max(span.end for span in self.spans)

    @property
    def n_rows(self) -> int:
        """Rows that a buffer has for it at least."""
        return max(span.row for span in self.spans) + 1

    @property
    def finite(self) -> bool:
        return any(span.finite for span in self.spans)

    def rows_of(self, buffer: mx.array) -> mx.array:
        """(B, heads, E, width) of a buffer (rows, heads, columns, width)."""
        return buffer[:, :, : self.end][mx.array([span.row for span in self.spans])]

    def mask(self, window_size: int | None) -> mx.array:
        """(B, 1, N, E), true where a row's token sees a column. What padding sees is of no account."""
        if window_size not in self.masks:
            columns = mx.arange(self.end)[None, None]
            position = self.offsets[:, None, None] + mx.arange(self.n_new)[None, :, None]
            mask = columns <= position
            if window_size is not None:
                mask = mask & (columns > position - window_size)
            self.masks[window_size] = mask[:, None]
        return self.masks[window_size]


class PromptView:
    """Rows of a SlotKV as the cache of a pass of several prompts (mlx-lm's batch cache protocol)."""

    def __init__(self, layer: SlotKV, block: PromptBlock) -> None:
        self._layer = layer
        self._block = block
        self.offset = block.offsets

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keeps each row's own tokens of ``keys`` and ``values`` (B, heads, N, head_dim), not the padding."""
        layer, block = self._layer, self._block
        held = layer.encode(keys, values, block.finite)
        layer.reserve(block.n_rows, block.end, *held)
        for place, span in enumerate(block.spans):
            own = slice(place, place + 1), slice(None), slice(span.n_new)
            layer.write(span.row, span.start, *(tuple(part[own] for part in parts) for parts in held))
        rows = [tuple(map(block.rows_of, parts)) for parts in (layer.keys, layer.values)]
        return layer.numbers(rows[0], rows[1], keys.dtype, values.dtype)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        return self._block.mask(window_size)
