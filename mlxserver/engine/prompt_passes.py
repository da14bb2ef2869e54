"""Chunks of several prompts share a forward pass where padding them costs less than the pass saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxserver.engine.plan import Chunk

PASS = 32
"""What a pass costs by itself, in tokens: it reads all weights, and few tokens use a processor badly."""
COLUMNS = 2048
"""A token reads this many columns of keys and values in the time that the rest of it takes."""


def prompt_passes(chunks: Iterable[Chunk], widest: int) -> list[list[Chunk]]:
    """The chunks of each pass, in their order; a shared one has ``widest`` tokens at most, with padding."""
    passes: list[list[Chunk]] = []
    for chunk in chunks:
        if passes and _may_join(passes[-1], chunk, widest):
            passes[-1].append(chunk)
        else:
            passes.append([chunk])
    return passes


def _may_join(group: Sequence[Chunk], chunk: Chunk, widest: int) -> bool:
    joined = [*group, chunk]
    if any(other.slot == chunk.slot for other in group) or _n_padded(joined) > widest:
        return False
    return _cost(joined) <= _cost(group) + _cost([chunk]) + PASS


def _n_padded(group: Sequence[Chunk]) -> int:
    return len(group) * max(len(chunk.tokens) for chunk in group)


def _cost(group: Sequence[Chunk]) -> float:
    """In tokens at the beginning of a prompt."""
    return _n_padded(group) * (1 + max(chunk.end for chunk in group) / COLUMNS)
