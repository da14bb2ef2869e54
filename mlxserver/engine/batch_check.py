"""Tests at load: does this model give a row of a batch what it gives the row alone, tokens of several slots
in one pass what each gives by itself, and a compiled step what an ordinary one gives?

Models that take positions from a plain integer (learned positions, dynamic rotary bases) do not; their
slots then decode one by one, and no step is compiled. The forward passes warm the model up as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx

from mlxserver.engine.compiled_steps import CompiledSteps
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.ragged import fit_for_ragged_passes

log = logging.getLogger("mlxserver.srv")

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
    return _near(together, mx.concatenate(alone))


def ragged_agrees(module: Any, make_cache: Callable[[], list[Any]]) -> bool:
    """Read the ends of two prompts alone, and in one pass with a token behind one of them."""
    states = SlotStates(make_cache, len(PROMPTS), KV_TYPES["f32"], KV_TYPES["f32"])
    if not states.is_plain:
        return False
    tokens, starts, single = mx.array([4]), (2, 1), 1
    ends = [prompt[start:] for prompt, start in zip(PROMPTS, starts, strict=True)]
    chunks = [(slot, len(end)) for slot, end in enumerate(ends)]
    read = mx.array([token for end in ends for token in end])
    expected = []
    for slot, (prompt, start) in enumerate(zip(PROMPTS, starts, strict=True)):
        module(mx.array([prompt[:start]]), cache=states.prompt_chunk(slot, start))
        whole = mx.concatenate([mx.array(ends[slot]), tokens])
        expected.append(module(whole[None], cache=states.prompt_chunk(slot, whole.size))[0])
        states.truncate(slot, start)
    try:
        fit_for_ragged_passes(module)
        found = module(read[:, None], cache=states.ragged([], chunks))[:, 0]
        agree = _near(found, mx.concatenate([logits[:-1] for logits in expected]))
        for slot, start in enumerate(starts):
            states.truncate(slot, start)
        caches = states.ragged([single], chunks, n_read=1)
        last = module(mx.concatenate([tokens, read])[:, None], cache=caches)[:, 0]
        agree = agree and last.shape[0] == 1 and _near(last, expected[single][-1:])
        return agree and all(each.has_attended for each in caches)
    except Exception as error:
        log.debug("slots share no pass with prompts: %s: %s", type(error).__name__, error)
        return False


def graphs_agree(module: Any, states: SlotStates, most_rows: int) -> bool:
    """Decode one row, and ``most_rows``, by a compiled step and by ordinary ones; ``states`` are empty."""
    try:
        for slot, prompt in enumerate(PROMPTS[:most_rows]):
            module(mx.array([prompt]), cache=states.prompt_chunk(slot, len(prompt)))
        return all(_graph_agrees(module, states, states.arrange(range(n))) for n in {1, most_rows})
    except Exception as error:
        log.debug("decode steps are not compiled: %s: %s", type(error).__name__, error)
        return False


def _graph_agrees(module: Any, states: SlotStates, order: list[int]) -> bool:
    """Two tokens of each slot in ordinary steps, by one graph, and in an ordinary step again.

    The graph is run at two positions, so that a number that it took from the first one shows; the last step
    tells whether the buffers and what the model keeps for itself are as before. So are the states.
    """
    lengths = {slot: states.length(slot) for slot in order}
    steps = CompiledSteps(module, states, worth=0)

    def ordinary(token: int) -> mx.array:
        return cast(mx.array, module(_each(token, order)[:, None], cache=states.decode(order))[:, -1])

    expected = [ordinary(2), ordinary(3), ordinary(4)]
    states.undo(lengths)
    compiled = [steps.attempt(_each(token, order), order) for token in (2, 3)]
    if any(logits is None for logits in compiled):
        return False
    found = [*compiled, ordinary(4)]
    states.undo(lengths)
    return all(map(_near, cast(list[mx.array], found), expected))


def _each(token: int, order: list[int]) -> mx.array:
    return mx.array([token] * len(order))


def _near(found: mx.array, expected: mx.array) -> bool:
    difference = mx.abs(found - expected).max()
    return bool((difference <= TOLERANCE * mx.abs(expected).max()).item())


def _logits(module: Any, make_cache: Callable[[], list[Any]], prompts: list[tuple[int, ...]]) -> mx.array:
    """(B, n_vocab) after each prompt, its last token decoded as a row of the batch."""
    states = SlotStates(make_cache, len(prompts), KV_TYPES["f32"], KV_TYPES["f32"])
    for slot, prompt in enumerate(prompts):
        module(mx.array([prompt[:-1]]), cache=states.prompt_chunk(slot, len(prompt) - 1))
    order = states.arrange(range(len(prompts)))
    last = mx.array([[prompts[slot][-1]] for slot in order])
    logits: mx.array = module(last, cache=states.decode(order))[:, -1].astype(mx.float32)
    return logits[mx.array([order.index(slot) for slot in range(len(prompts))])]
