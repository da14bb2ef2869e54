"""The end of a prompt and its last token, which is decoded, share a forward pass where that saves one."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.plan import Chunk, Decode, Join

MOST_REST, MOST_BESIDE = 32, 8
"""Tokens of a prompt's end that are evaluated with the last one, where no other slot decodes and where some
do: the logits of all of them are made too, which saves a pass, or a row of the others' pass."""


def joined_end(
    passes: tuple[tuple[Chunk, ...], ...], joins: Sequence[Join], decodes: tuple[Decode, ...]
) -> tuple[tuple[tuple[Chunk, ...], ...], tuple[Decode, ...]]:
    """One pass for a short end of a prompt and its last token."""
    if len(joins) != 1 or not passes or len(passes[-1]) != 1:
        return passes, decodes
    join, rest = joins[0], passes[-1][0]
    most = MOST_REST if len(decodes) == 1 else MOST_BESIDE
    if rest.task_id != join.task_id or rest.adapters != join.adapters or len(rest.tokens) > most:
        return passes, decodes
    others = tuple(decode for decode in decodes if decode.task_id != join.task_id)
    return passes[:-1], (Decode(join.slot, join.task_id, rest), *others)
