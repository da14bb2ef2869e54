"""The end of a prompt and its last token, which is decoded, share a forward pass where that saves one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlxserver.engine.plan import Chunk, Decode, Join

MOST_REST = 32
"""Tokens of a prompt's end that are evaluated with the last one: the logits of all of them are too."""


def joined_end(
    passes: tuple[tuple[Chunk, ...], ...], joins: Sequence[Join], decodes: tuple[Decode, ...]
) -> tuple[tuple[tuple[Chunk, ...], ...], tuple[Decode, ...]]:
    """One pass for a short end of a prompt and its last token, if no other slot decodes.

    A pass beside others costs a row next to nothing; by itself it is as dear as the one over the end.
    """
    if len(decodes) != 1 or len(joins) != 1 or not passes or len(passes[-1]) != 1:
        return passes, decodes
    decode, join, rest = decodes[0], joins[0], passes[-1][0]
    of_a_task = decode.task_id == join.task_id == rest.task_id
    if not of_a_task or rest.adapters != join.adapters or len(rest.tokens) > MOST_REST:
        return passes, decodes
    return passes[:-1], (replace(decode, rest=rest),)
