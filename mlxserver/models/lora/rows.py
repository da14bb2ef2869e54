"""Which adapters each row of the forward pass under way uses, and what that makes of their products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import mlx.core as mx
import numpy as np

from mlxserver.models.lora.adapter import LowRank

RowAdapters = tuple[tuple[str, float], ...]
"""(digest, scale) of each adapter that a row uses."""

KEPT_JOINS = 2
"""Sets of several adapters whose matrices are kept side by side."""
KEPT_CHOICES = 8
"""Batches whose masks are kept."""

Columns = tuple[tuple[str, int, float, mx.Dtype], ...]
"""(digest, rank, own scale, compute type) of each adapter of a layer, in the order of its columns."""


class Joined:
    """A layer's pairs of several adapters as one: ``a`` (in, R), ``b`` (R, out)."""

    def __init__(self, parts: Sequence[tuple[str, LowRank]]) -> None:
        self.columns: Columns = tuple((digest, part.rank, part.scale, part.a.dtype) for digest, part in parts)
        if len(parts) == 1:
            self.a, self.b = parts[0][1].a, parts[0][1].b
        else:
            self.a = mx.concatenate([part.a for _, part in parts], axis=-1)
            self.b = mx.concatenate([part.b for _, part in parts], axis=-2)


class Active:
    """The adapters that a batch uses at all, and their joined matrices."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        self.digests = digests
        self._joined: dict[tuple[str, bool], Joined | None] = {}

    def joined(self, path: str, parts: Mapping[str, LowRank], in_head: bool = False) -> Joined | None:
        """None where none of them touches the layer at ``path``, whose parts by digest are ``parts``."""
        key = path, in_head
        if key not in self._joined:
            chosen = [(digest, parts[digest]) for digest in self.digests if digest in parts]
            chosen = [(digest, part) for digest, part in chosen if part.in_head or not in_head]
            self._joined[key] = Joined(chosen) if chosen else None
        return self._joined[key]


class Choice:
    """What the rows of one batch use of the active adapters."""

    def __init__(self, active: Active, rows: tuple[RowAdapters, ...]) -> None:
        self.active = active
        self.rows = rows
        self.is_uniform = len(set(rows)) == 1
        self._made: dict[tuple[Columns, int], tuple[mx.array, mx.array]] = {}

    def scaled(self, z: mx.array, columns: Columns) -> mx.array:
        """``z`` (B, ..., R) with every row's columns times its scales, and zero where it has none.

        A column that is not the row's is put out by a mask: an infinite value times zero would not be zero.
        """
        if self.is_uniform and len(columns) == 1:
            ((digest, _, own, _),) = columns
            scale = dict(self.rows[0])[digest] * own
            return z if scale == 1.0 else z * scale
        scales, mask = self._of_columns(columns, z.ndim)
        if self.is_uniform:
            return z * scales
        if (n_repeats := self._repeats(z.shape[0])) > 1:
            scales, mask = mx.repeat(scales, n_repeats, axis=0), mx.repeat(mask, n_repeats, axis=0)
        return mx.where(mask, z * scales, 0)

    def groups(self, n: int) -> list[tuple[RowAdapters, mx.array]]:
        """What rows use, and which of the ``n`` first indices of an array are those rows' own."""
        n_repeats = self._repeats(n)
        at: dict[RowAdapters, list[int]] = {}
        for index in range(n):
            at.setdefault(self.rows[index // n_repeats], []).append(index)
        return [(row, mx.array(indices)) for row, indices in at.items()]

    def _repeats(self, n: int) -> int:
        """How many indices of an axis of length ``n`` are one row's: in (B * L, ...) its tokens follow
        each other."""
        n_repeats, rest = divmod(n, len(self.rows))
        if rest or not n_repeats:
            raise ValueError(f"{n} rows in the forward pass, adapters were chosen for {len(self.rows)}")
        return n_repeats

    def _of_columns(self, columns: Columns, n_dims: int) -> tuple[mx.array, mx.array]:
        """(B, 1, ..., R): the scale of each row's columns, and which it has; a row for all that are alike."""
        if (columns, n_dims) not in self._made:
            rows = [dict(row) for row in (self.rows[:1] if self.is_uniform else self.rows)]
            ranks = [rank for _, rank, _, _ in columns]
            scales = [[row.get(digest, 0.0) * own for digest, _, own, _ in columns] for row in rows]
            has = [[digest in row for digest, *_ in columns] for row in rows]
            shape = (len(rows), *(1 for _ in range(n_dims - 2)), sum(ranks))
            self._made[columns, n_dims] = (
                mx.array(np.repeat(scales, ranks, axis=1).reshape(shape), dtype=columns[0][3]),
                mx.array(np.repeat(has, ranks, axis=1).reshape(shape)),
            )
        return self._made[columns, n_dims]


class Rows:
    """The one object that all layers with adapters ask; ``choice`` None is the base model for all rows."""

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self._choices: dict[tuple[RowAdapters, ...], Choice] = {}
        self._actives: dict[tuple[str, ...], Active] = {}
        """Both in the order of their last use."""

    def choose(self, rows: Sequence[RowAdapters]) -> None:
        cleaned = tuple(_cleaned(row) for row in rows)
        self.choice = self._choice(cleaned) if any(cleaned) else None

    def forget(self, digest: str) -> None:
        """An adapter goes; no row is to use it any more."""
        self.choice = None
        for digests in [digests for digests in self._actives if digest in digests]:
            self._drop(digests)

    @contextmanager
    def only(self, row: RowAdapters) -> Iterator[None]:
        """Within, all rows are like ``row``, one of the current ones."""
        whole = self.choice
        assert whole is not None
        self.choice = Choice(whole.active, (row,)) if row else None
        try:
            yield
        finally:
            self.choice = whole

    def _choice(self, rows: tuple[RowAdapters, ...]) -> Choice:
        active = self._active(tuple(sorted({digest for row in rows for digest, _ in row})))
        choice = self._choices.pop(rows, None) or Choice(active, rows)
        self._choices[rows] = choice
        if len(self._choices) > KEPT_CHOICES:
            del self._choices[next(iter(self._choices))]
        return choice

    def _active(self, digests: tuple[str, ...]) -> Active:
        """The last sets of several adapters are kept; single ones have no copies of anything."""
        active = self._actives.pop(digests, None) or Active(digests)
        self._actives[digests] = active
        joins = [kept for kept in self._actives if len(kept) > 1]
        if len(joins) > KEPT_JOINS:
            self._drop(joins[0])
        return active

    def _drop(self, digests: tuple[str, ...]) -> None:
        """Nothing may hold on to the matrices: they are to be gone at once."""
        active = self._actives.pop(digests)
        self._choices = {
            rows: choice for rows, choice in self._choices.items() if choice.active is not active
        }


def _cleaned(row: RowAdapters) -> RowAdapters:
    """Sorted, an adapter named twice with the sum of its scales, without those of scale 0."""
    scales: dict[str, float] = {}
    for digest, scale in row:
        scales[digest] = scales.get(digest, 0.0) + scale
    return tuple(sorted((digest, scale) for digest, scale in scales.items() if scale))
