"""Chunks of several prompts share a forward pass where padding them costs less than the pass saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.plan import Chunk

COLUMNS = 2048
"""A token reads this many columns of keys and values in the time that the rest of it takes."""


def prompt_passes(chunks: Iterable[Chunk], widest: int, pass_tokens: float) -> tuple[tuple[Chunk, ...], ...]:
    """The chunks of each pass, in their order; a shared one has ``widest`` tokens at most, with padding.

    ``pass_tokens``: what a pass costs by itself, in tokens.
    """
    passes: list[list[Chunk]] = []
    for chunk in chunks:
        if passes and _may_join(passes[-1], chunk, widest, pass_tokens):
            passes[-1].append(chunk)
        else:
            passes.append([chunk])
    return tuple(map(tuple, passes))


def _may_join(group: Sequence[Chunk], chunk: Chunk, widest: int, pass_tokens: float) -> bool:
    joined = _shape([*group, chunk])
    if any(other.slot == chunk.slot for other in group) or joined.n_tokens > widest:
        return False
    return _cost(joined) <= _cost(_shape(group)) + _cost(_shape([chunk])) + pass_tokens


def _shape(group: Sequence[Chunk]) -> PassShape:
    return PassShape.of([chunk.part for chunk in group])


def _cost(shape: PassShape) -> float:
    """In tokens at the beginning of a prompt."""
    return shape.n_tokens * (1 + shape.reach / COLUMNS)
