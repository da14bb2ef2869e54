"""A layer whose state has no columns to address: sliding windows, recurrent state, lists of both.

Every row owns a cache of mlx-lm with a batch of 1; rows that decode together are merged into mlx-lm's
batch cache and taken apart again when the set of rows changes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx

Cache = Any


class BatchedState:
    """``fresh`` makes this layer's empty cache. A row without a cache is empty."""

    def __init__(self, fresh: Callable[[], Cache]) -> None:
        self._fresh = fresh
        self._single: dict[int, Cache] = {}
        self._batch: Cache = None
        self._batch_rows: tuple[int, ...] = ()
        self._before: Any = None
        """What the batch was when ``many`` last gave it."""
        self.can_undo = not _has_window(fresh())
        """A window writes over its oldest column; keeping that one would copy the window in every step."""

    def fresh(self, state: Any) -> Cache:
        """A cache of this layer in a given ``state``."""
        cache = self._fresh()
        cache.state = state
        return cache

    def one(self, row: int) -> Cache:
        """The row's cache with a batch of 1."""
        if row in self._batch_rows:
            self._take_apart()
        if row not in self._single:
            self._single[row] = self._fresh()
        return self._single[row]

    def many(self, rows: tuple[int, ...]) -> Cache:
        """The rows' caches merged in this order."""
        if rows != self._batch_rows:
            self._take_apart()
            caches = [self._single[row] if row in self._single else self._fresh() for row in rows]
            self._batch = type(caches[0]).merge(caches)
            self._batch_rows = rows
            for row in rows:  # only now: where merging fails they are still there
                self._single.pop(row, None)
        self._before = _noted(self._batch)
        return self._batch

    def undo(self) -> None:
        """Make the batch what it was before the forward pass that ``many`` was last asked for."""
        _put_back(self._batch, self._before)

    def sizes(self, row: int) -> tuple[int, list[tuple[int, int]]]:
        """(bytes that do not grow, (bytes a token, most tokens) of each part that does) of a row's cache."""
        return _sizes(self.one(row))

    def clear(self, row: int) -> None:
        if row in self._batch_rows:
            self._take_apart()
        self._single.pop(row, None)

    def drop(self, row: int) -> None:
        """Forget a row after a failed step; the other rows of its batch failed with it."""
        if row in self._batch_rows:
            self._batch, self._batch_rows = None, ()
        self._single.pop(row, None)

    def trim(self, row: int, n: int) -> None:
        """Drop the last ``n`` tokens; the caller has made sure that the cache can."""
        self.one(row).trim(n)

    def can_trim(self, row: int) -> bool:
        return bool(self.one(row).is_trimmable())

    def read(self, row: int) -> Cache:
        """A copy of the row's cache. Arrays are immutable, so that it shares them until the row goes on."""
        return copy.deepcopy(self.one(row))

    def write(self, row: int, cache: Cache) -> None:
        """Put a copy of ``cache`` in place of what the row holds."""
        if row in self._batch_rows:
            self._take_apart()
        self._single[row] = copy.deepcopy(cache)

    def swap(self, a: int, b: int) -> None:
        one_a, one_b = self.one(a), self.one(b)
        self._single[a], self._single[b] = one_b, one_a

    def _take_apart(self) -> None:
        for index, row in enumerate(self._batch_rows):
            self._single[row] = self._batch.extract(index)
        self._batch, self._batch_rows = None, ()

    @property
    def arrays(self) -> list[mx.array]:
        caches = [*self._single.values(), *([self._batch] if self._batch is not None else [])]
        return [leaf for cache in caches if not cache.empty() for leaf in _leaves(cache.state)]


def _has_window(cache: Cache) -> bool:
    return any(map(_has_window, cache.caches)) if hasattr(cache, "caches") else hasattr(cache, "max_size")


def _sizes(cache: Cache) -> tuple[int, list[tuple[int, int]]]:
    if hasattr(cache, "caches"):
        parts = [_sizes(part) for part in cache.caches]
        return sum(fixed for fixed, _ in parts), [each for _, growing in parts for each in growing]
    if cache.empty():
        return 0, []
    leaves = _leaves(cache.state)
    nbytes = sum(leaf.nbytes for leaf in leaves)
    if getattr(cache, "keys", None) is None:
        return nbytes, []
    n_columns = leaves[0].shape[2]
    return 0, [(nbytes // n_columns, getattr(cache, "max_size", sys.maxsize))]


def _noted(cache: Cache) -> Any:
    """What a forward pass changes of a cache without a window.

    Keys and values are written to in place, but only behind the tokens that are there; all else is replaced.
    """
    if hasattr(cache, "caches"):
        return [_noted(part) for part in cache.caches]
    return {name: _handle(value) for name, value in vars(cache).items()}


def _handle(value: Any) -> Any:
    """Of a small array another handle, since ``+=`` changes what the one at hand stands for."""
    if isinstance(value, list):
        return list(value)
    return mx.array(value) if isinstance(value, mx.array) and value.ndim == 1 else value


def _put_back(cache: Cache, noted: Any) -> None:
    if hasattr(cache, "caches"):
        for part, of_part in zip(cache.caches, noted, strict=True):
            _put_back(part, of_part)
    else:
        cache.__dict__ = dict(noted)


def _leaves(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in _leaves(part)]
    return []
