"""State outside the slots: runs of tokens of the plain layers, snapshots of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx

from mlxserver.kv.kv_type import Parts


@dataclass(frozen=True)
class KVSpan:
    """``layers``: the parts of keys and of values of each plain attention layer, (1, heads, n, width) each,
    held as the KV types say."""

    layers: tuple[tuple[Parts, Parts], ...]

    @property
    def n(self) -> int:
        """Tokens; 0 for a model without plain layers."""
        return self.layers[0][0][0].shape[2] if self.layers else 0

    @cached_property
    def nbytes(self) -> int:
        return sum(part.nbytes for keys, values in self.layers for part in (*keys, *values))

    def split(self, n: int) -> tuple[KVSpan, KVSpan]:
        return self.part(slice(None, n)), self.part(slice(n, None))

    def part(self, columns: slice) -> KVSpan:
        """Some of the tokens, in memory of their own."""
        layers = tuple((_cut(keys, columns), _cut(values, columns)) for keys, values in self.layers)
        mx.eval(layers)
        return KVSpan(layers)


@dataclass(frozen=True)
class KVSnapshot:
    """mlx-lm's caches of the layers that cannot be cut, after some token. Their arrays never change."""

    caches: tuple[Any, ...]

    @cached_property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)


def _cut(parts: Parts, columns: slice) -> Parts:
    return tuple(mx.contiguous(part[:, :, columns]) for part in parts)


def bytes_per_token(buffers: Sequence[mx.array]) -> int:
    """What one token of buffers (rows, heads, columns, width) takes."""
    return sum(buffer.shape[1] * buffer.shape[3] * buffer.dtype.size for buffer in buffers)
