"""State outside the slots: runs of tokens of the plain layers, snapshots of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class KVSpan:
    """``layers``: (keys, values) of each plain attention layer, (1, heads, n, head_dim) in the KV types."""

    layers: tuple[tuple[mx.array, mx.array], ...]

    @property
    def n(self) -> int:
        """Tokens; 0 for a model without plain layers."""
        return self.layers[0][0].shape[2] if self.layers else 0

    @cached_property
    def nbytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    def split(self, n: int) -> tuple[KVSpan, KVSpan]:
        return self.part(slice(None, n)), self.part(slice(n, None))

    def part(self, columns: slice) -> KVSpan:
        """Some of the tokens, in memory of their own."""
        layers = tuple(
            (mx.contiguous(keys[:, :, columns]), mx.contiguous(values[:, :, columns]))
            for keys, values in self.layers
        )
        mx.eval(layers)
        return KVSpan(layers)


@dataclass(frozen=True)
class KVSnapshot:
    """mlx-lm's caches of the layers that cannot be cut, after some token. Their arrays never change."""

    caches: tuple[Any, ...]

    @cached_property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


def bytes_per_token(buffers: Sequence[mx.array]) -> int:
    """What one token of buffers (rows, heads, columns, head_dim) takes."""
    return sum(buffer.shape[1] * buffer.shape[3] * buffer.dtype.size for buffer in buffers)
