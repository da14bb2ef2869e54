"""Rows of very unequal length decode in two passes: in one, each reads as many columns as the longest."""

from __future__ import annotations

from collections.abc import Sequence

WORTH = 2.0
"""Bytes of state that are read for nothing, over the weights', from which on a second pass is cheaper.

A pass reads all weights; measured on a CPU, both cost the same at 0.7 to 2.
"""


def row_groups(
    slots: Sequence[int], lengths: Sequence[int], bytes_per_token: int, weight_bytes: int
) -> list[list[int]]:
    """``slots`` as one group, or as the shorter and the longer ones where that saves the most."""
    ordered = sorted(zip(lengths, slots, strict=True))
    longest = ordered[-1][0]
    saved = [n * (longest - ordered[n - 1][0]) for n in range(1, len(ordered))]
    most = max(saved, default=0)
    if most * bytes_per_token <= WORTH * weight_bytes:
        return [list(slots)]
    n = saved.index(most) + 1
    return [[slot for _, slot in ordered[:n]], [slot for _, slot in ordered[n:]]]
