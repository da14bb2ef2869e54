"""How fast this model evaluates a prompt, measured once at the start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxserver.kv.slot_states import SlotStates

FEW, MANY = 1, 33
"""Tokens of the two chunks whose times are compared."""
REPEATED = 2
"""The first time is the one in which kernels are made."""
MOST_PASS_TOKENS = 128.0
"""Where the times hardly differ, noise alone could say anything."""


@dataclass(frozen=True, slots=True)
class PromptSpeed:
    seconds_per_token: float
    """Of the larger chunk; what the disk has to beat."""
    pass_tokens: float
    """What a pass costs whatever its tokens, in tokens at the beginning of a prompt."""


def prompt_speed(module: Any, states: SlotStates) -> PromptSpeed:
    """Of chunks in slot 0, which is empty before and after."""
    few, many = (min(_seconds(module, states, n) for _ in range(REPEATED)) for n in (FEW, MANY))
    token = max(many - few, 0.0) / (MANY - FEW)
    own = max(0.0, few - FEW * token)
    return PromptSpeed(many / MANY, min(own / token, MOST_PASS_TOKENS) if token else MOST_PASS_TOKENS)


def _seconds(module: Any, states: SlotStates, n: int) -> float:
    begin = time.perf_counter()
    module(mx.array([[0] * n]), cache=states.prompt_chunk(0, n))
    mx.eval(states.arrays())
    seconds = time.perf_counter() - begin
    states.truncate(0, 0)
    return seconds
