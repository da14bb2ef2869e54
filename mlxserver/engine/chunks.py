"""Runs of a prompt's tokens that stand elsewhere in what was evaluated before (``--cache-reuse``)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from mlxserver.kv.prefix import common_prefix

WIDTH = array("i").itemsize


@dataclass(frozen=True, slots=True)
class Run:
    """The tokens ``[start, end)`` of an old sequence, which are those of the prompt from ``at`` on."""

    start: int
    end: int
    at: int


def find_runs(old: array[int], new: array[int], old_start: int, new_start: int, shortest: int) -> list[Run]:
    """llama-server's search: runs of at least ``shortest`` equal tokens, one behind the other in both.

    The prompt's tokens are never passed over, so that what was removed is found, not what was put in.
    """
    runs: list[Run] = []
    while len(new) - new_start >= shortest:
        old_start = _find(old, new[new_start : new_start + shortest], old_start)
        if old_start < 0:
            break
        n = common_prefix(old[old_start:], new[new_start:])
        runs.append(Run(old_start, old_start + n, new_start))
        old_start, new_start = old_start + n, new_start + n
    return runs


def _find(tokens: array[int], wanted: array[int], start: int) -> int:
    """The first place from ``start`` on where ``wanted`` stands in ``tokens``; -1 where it does not."""
    haystack, needle = tokens.tobytes(), wanted.tobytes()
    found = haystack.find(needle, start * WIDTH)
    while found >= 0 and found % WIDTH:  # the bytes of two tokens may look like those of one
        found = haystack.find(needle, found + 1)
    return found // WIDTH if found >= 0 else -1
