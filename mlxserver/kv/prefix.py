"""How far two sequences agree."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common prefix. Slices of one type compare at C speed."""
    if type(a) is not type(b):
        a, b = tuple(a), tuple(b)
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n
    while high - low > 1:  # a[:low] == b[:low], a[:high] != b[:high]
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
