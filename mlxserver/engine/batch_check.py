"""A test at load: does this model give a row of a batch what it gives the row alone?

Models that take positions from a plain integer (learned positions, dynamic rotary bases) do not; their
slots then decode one by one. The forward passes warm the model up as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates

PROMPTS = ((1, 2, 3, 4, 5), (3, 1, 2))
TOLERANCE = 0.05
"""Of the largest logit: far above what 16-bit floats do to a sum, far below a wrong position."""


def rows_agree(module: Any, make_cache: Callable[[], list[Any]]) -> bool:
    """Decode two prompts of unequal length alone and in one batch and compare the logits."""
    try:
        alone = [_logits(module, make_cache, [prompt]) for prompt in PROMPTS]
        together = _logits(module, make_cache, list(PROMPTS))
    except (ValueError, TypeError, RuntimeError, NotImplementedError):
        return False
    difference = mx.abs(together - mx.concatenate(alone)).max()
    return bool((difference <= TOLERANCE * mx.abs(together).max()).item())


def _logits(module: Any, make_cache: Callable[[], list[Any]], prompts: list[tuple[int, ...]]) -> mx.array:
    """(B, n_vocab) after each prompt, its last token decoded as a row of the batch."""
    states = SlotStates(make_cache, len(prompts), KV_TYPES["f32"], KV_TYPES["f32"])
    for slot, prompt in enumerate(prompts):
        module(mx.array([prompt[:-1]]), cache=states.prompt_chunk(slot, len(prompt) - 1))
    order = states.arrange(range(len(prompts)))
    last = mx.array([[prompts[slot][-1]] for slot in order])
    logits: mx.array = module(last, cache=states.decode(order))[:, -1].astype(mx.float32)
    return logits[mx.array([order.index(slot) for slot in range(len(prompts))])]
