"""``--context-shift``: when a slot's context is full, old tokens go and those behind them move up."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.engine.task import Task

MARGIN = 4
"""Tokens of the context that are never among those to keep."""


@dataclass(frozen=True, slots=True)
class Shift:
    """``n_discard`` tokens behind the first ``n_keep`` went after the slot had asked for ``n_launched``."""

    n_keep: int
    n_discard: int
    n_launched: int


def shift_of(task: Task, n_tokens: int, n_ctx: int, adds_bos: bool, n_launched: int) -> Shift:
    """What goes of ``n_tokens``, as llama-server reckons it; at least the last token stays."""
    n_keep = len(task.tokens) if task.n_keep < 0 else task.n_keep
    n_keep = min(n_ctx - MARGIN, n_keep + adds_bos)
    n_left = n_tokens - n_keep
    n_discard = task.n_discard or n_left // 2
    return Shift(n_keep, min(max(0, n_discard), max(0, n_left - 1)), n_launched)
