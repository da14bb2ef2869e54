"""Tokens of several slots as one batch without padding: each is a row (N, 1) with a position of its own.

Everything but attention treats tokens alike; attention is carried out slot by slot, by the layer's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlxserver.kv.kv_type import Parts
from mlxserver.kv.slot_kv import RowBlock, RowSpan, SlotKV


@dataclass(frozen=True, slots=True)
class RaggedMask:
    """What a model hands on from ``make_mask`` to the attention, as it is."""

    rows: mx.array | None
    spans: tuple[Any, ...]


@dataclass(slots=True)
class RaggedBlock:
    """One token of each of ``rows``, then those of ``spans``; shared by all layers of a pass.

    A row may be that of a span: its token is then the one behind those.
    """

    rows: RowBlock | None
    spans: tuple[RowSpan, ...]
    offsets: mx.array = field(init=False)
    """(N,) positions of the tokens."""
    places: list[slice] = field(init=False)
    """Of each span's tokens among the N."""
    masks: dict[tuple[int | None, bool], RaggedMask] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        positions = [mx.arange(span.start, span.end, dtype=mx.int32) for span in self.spans]
        self.offsets = mx.concatenate([self.rows.offsets, *positions] if self.rows else positions)
        self.places, at = [], self.n_single
        for span in self.spans:
            self.places.append(slice(at, at + span.n_new))
            at += span.n_new

    @property
    def n_single(self) -> int:
        """Rows that take one token."""
        return self.rows.hi - self.rows.lo if self.rows else 0

    @property
    def n_rows(self) -> int:
        """Rows that a buffer has for it at least."""
        return max(self.rows.hi if self.rows else 0, *(span.row + 1 for span in self.spans))

    @property
    def end(self) -> int:
        """Columns that a buffer has for it at least."""
        return max(self.rows.end if self.rows else 0, *(span.end for span in self.spans))

    @property
    def finite(self) -> bool:
        """As of a RowSpan."""
        return any(span.finite for span in self.spans)

    def mask(self, window_size: int | None, as_array: bool) -> RaggedMask:
        from mlx_lm.models.cache import create_attention_mask

        key = window_size, as_array
        if key not in self.masks:
            spans = [
                create_attention_mask(span.n_new, span.start, as_array, window_size) for span in self.spans
            ]
            self.masks[key] = RaggedMask(self.rows.mask(window_size) if self.rows else None, tuple(spans))
        return self.masks[key]


class RaggedView:
    """A SlotKV as the cache of such a batch (mlx-lm's cache protocol, and ``attend``)."""

    def __init__(self, layer: SlotKV, block: RaggedBlock, n_read: int | None = None) -> None:
        self._layer = layer
        self._block = block
        self._dtypes: tuple[mx.Dtype, mx.Dtype] | None = None
        self.offset = block.offsets
        self.n_read = n_read
        """The first rows, whose logits are made; None for all."""
        self.has_attended = False
        """Whether the model has left the attention to this."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keeps ``keys`` and ``values`` (N, heads, 1, head_dim); gives those back: ``attend`` reads."""
        layer, block = self._layer, self._block
        held = layer.encode(keys, values, block.finite)
        layer.reserve(block.n_rows, block.end, *held)
        for place, span in zip(block.places, block.spans, strict=True):
            layer.write(span.row, span.start, *(_as_sequence(parts, place) for parts in held))
        if block.rows:
            single = slice(block.n_single)
            layer.write_rows(block.rows, *(tuple(part[single] for part in parts) for parts in held))
        self._dtypes = keys.dtype, values.dtype
        return keys, values

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> RaggedMask:
        return self._block.mask(window_size, return_array)

    def attend(
        self, attention: Callable[..., mx.array], queries: mx.array, *, mask: RaggedMask, **fields: Any
    ) -> mx.array:
        """``attention`` of each slot's ``queries`` (N, heads, 1, head_dim) over what the slot holds."""
        layer, block = self._layer, self._block
        assert self._dtypes is not None, "keys and values come first"
        found = []
        if rows := block.rows:
            held = layer.decode(slice(rows.lo, rows.hi), rows.end, *self._dtypes)
            found.append(attention(queries[: block.n_single], *held, None, mask=mask.rows, **fields))
        for place, span, own in zip(block.places, block.spans, mask.spans, strict=True):
            held = layer.decode(slice(span.row, span.row + 1), span.end, *self._dtypes)
            sequence = queries[place].swapaxes(0, 2)
            found.append(attention(sequence, *held, None, mask=own, **fields).swapaxes(0, 2))
        self.has_attended = True
        return mx.concatenate(found) if len(found) > 1 else found[0]


def _as_sequence(parts: Parts, place: slice) -> Parts:
    """Rows (n, heads, 1, width) as a sequence (1, heads, n, width)."""
    return tuple(part[place].swapaxes(0, 2) for part in parts)
