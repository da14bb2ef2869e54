"""Which row of the buffers each slot has: those that decode together are neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Swap = Callable[[int, int], None]
"""Exchanges what two rows hold."""


class SlotRows:
    """Fresh slots are taken last first; rows from the front."""

    def __init__(self, n_slots: int) -> None:
        self._row = list(range(n_slots - 1, -1, -1))

    def of(self, slot: int) -> int:
        return self._row[slot]

    def slot(self, row: int) -> int:
        return self._row.index(row)

    def first(self, is_wanted: Callable[[int], bool]) -> int:
        """Of the slots that are wanted, the one with the first row."""
        return min(filter(is_wanted, range(len(self._row))), key=self.of)

    def exchange(self, slot: int, other: int) -> None:
        """Two slots exchange their rows, not what these hold."""
        self._row[slot], self._row[other] = self._row[other], self._row[slot]

    def arrange(self, slots: Sequence[int], swap: Swap) -> list[int]:
        """Move rows so that those of ``slots`` are neighbours; the slots in the order of their rows."""
        rows = {self._row[slot] for slot in slots}
        if len(slots) > 1 and max(rows) - min(rows) >= len(slots):
            block = _best_block(rows, len(self._row))
            holes = [row for row in block if row not in rows]
            for row, hole in zip(sorted(rows - set(block)), holes, strict=True):
                self._move(row, hole, swap)
        return sorted(slots, key=self.of)

    def arrange_passes(self, passes: Sequence[Sequence[int]], swap: Swap) -> list[list[int]]:
        """As ``arrange``, for one set of slots or for two that are decoded one after the other."""
        order = self.arrange([slot for slots in passes for slot in slots], swap)
        if len(passes) == 1:
            return [order]
        both = tuple(passes), tuple(passes)[::-1]
        front, back = max(both, key=lambda pair: len({*order[: len(pair[0])]} & {*pair[0]}))
        holes = [slot for slot in order[: len(front)] if slot not in front]
        strays = [slot for slot in order[len(front) :] if slot in front]
        for hole, stray in zip(holes, strays, strict=True):
            self._move(self._row[hole], self._row[stray], swap)
        return [sorted(slots, key=self.of) for slots in (front, back)]

    def _move(self, a: int, b: int, swap: Swap) -> None:
        swap(a, b)
        self.exchange(self.slot(a), self.slot(b))


def _best_block(rows: set[int], n_rows: int) -> range:
    """The run of ``len(rows)`` neighbours that holds most of ``rows``: the fewest moves."""
    width = len(rows)
    starts = range(n_rows - width + 1)
    best = max(starts, key=lambda lo: sum(row in rows for row in range(lo, lo + width)))
    return range(best, best + width)
