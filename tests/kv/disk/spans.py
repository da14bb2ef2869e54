"""Stores, spans and tokens for the tests of the disk tier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.kv_type import KV_TYPES, KVType
from mlxserver.kv.spans import KVSpan

F32 = KV_TYPES["f32"]
SPACE = "a model"


def numbers(n: int, seed: int = 0) -> list[int]:
    return [(7 * i + 13 * seed + 3) % 250 for i in range(n)]


def span_of(tokens: list[int], start: int = 0, kind: KVType = F32, n_layers: int = 2) -> KVSpan:
    """State that tells which token at which position it is of: those from ``start`` on."""
    layers = []
    for layer in range(n_layers):
        pair = []
        for part in range(2):
            row = [1000.0 * layer + 500 * part + token + i / 1000 for i, token in enumerate(tokens)]
            values = mx.broadcast_to(mx.array(row)[None, None, :, None], (1, 3, len(row), 32 * (part + 1)))
            pair.append(tuple(mx.contiguous(each[:, :, start:]) for each in kind.encode(values)))
        layers.append((pair[0], pair[1]))
    mx.eval(layers)
    return KVSpan(tuple(layers))


def equal(a: KVSpan, b: KVSpan) -> bool:
    """Bit for bit, types and shapes too."""
    parts_a, parts_b = ([p for pair in s.layers for kind in pair for p in kind] for s in (a, b))
    return len(parts_a) == len(parts_b) and all(
        (x.shape, x.dtype) == (y.shape, y.dtype) and bool(mx.array_equal(x, y))
        for x, y in zip(parts_a, parts_b, strict=True)
    )


@contextmanager
def opened(folder: Path, limit: int | None = None, space: str = SPACE, **options: Any) -> Iterator[DiskStore]:
    store = DiskStore(folder, limit, space, **options)
    try:
        assert store.flush(30)
        yield store
        assert store.flush(30)
        store.check()
    finally:
        store.close()
