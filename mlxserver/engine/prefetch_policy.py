"""How long a request waits for its state from disk (``--cache-disk-prefetch``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from mlxserver.kv.block_hash import BLOCK_TOKENS

CHUNK_BLOCKS = 8
"""Blocks that are read without a look at whether anybody still wants them published."""
CHUNK_TOKENS = CHUNK_BLOCKS * BLOCK_TOKENS
UNKNOWN_SECONDS_PER_TOKEN = 0.001
"""Of evaluating a prompt, before the first one was measured."""

PolicyName = Literal["best-effort", "timeout", "wait"]
StopReason = Literal["complete", "scheduled", "timeout", "cancelled", "error", "no_room"]
STOP_REASONS: tuple[StopReason, ...] = ("complete", "scheduled", "timeout", "cancelled", "error", "no_room")


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """``seconds``: the budget of ``timeout``, from when the request entered the queue."""

    name: PolicyName
    seconds: float

    @property
    def reason(self) -> StopReason:
        """What a stop at the deadline is called."""
        return "timeout" if self.name == "timeout" else "scheduled"

    def deadline(
        self, t_entered: float, t_ready: float | None, n_gained: int, seconds_per_token: float
    ) -> float:
        """When to go on without what has not arrived by then.

        ``t_ready``: when the request could first have been started; None before that. ``n_gained``: tokens
        that came into reach since. ``seconds_per_token``: what evaluating a prompt takes; 0 while that is
        not known. So best-effort goes on while the disk is faster than the model, and a request is later
        than without a disk by the time that evaluating one chunk takes at most.
        """
        if self.name == "timeout":
            return t_entered + self.seconds
        if self.name == "wait" or t_ready is None:
            return math.inf
        return t_ready + (n_gained + CHUNK_TOKENS) * (seconds_per_token or UNKNOWN_SECONDS_PER_TOKEN)
