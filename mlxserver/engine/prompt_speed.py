"""How fast this model evaluates a prompt, measured once at the start: what the disk has to beat."""

from __future__ import annotations

import time
from typing import Any

import mlx.core as mx

from mlxserver.kv.slot_states import SlotStates

N_TOKENS = 64


def seconds_per_token(module: Any, states: SlotStates) -> float:
    """Of a chunk in slot 0, which is empty before and after."""
    seconds = 0.0
    for _ in range(2):  # the first time is the one in which kernels are made
        begin = time.perf_counter()
        module(mx.array([[0] * N_TOKENS]), cache=states.prompt_chunk(0, N_TOKENS))
        mx.eval(states.arrays())
        seconds = time.perf_counter() - begin
        states.truncate(0, 0)
    return seconds / N_TOKENS
