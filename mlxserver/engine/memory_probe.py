"""What a model's prompts and steps take, found by evaluating a few tokens at the start."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxserver.kv.memory import MemoryCosts
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.device import on_metal
from mlxserver.models.hidden_states import hidden_states
from mlxserver.models.model import Model
from mlxserver.models.parameters import named_parameters

N_TOKENS = 32
MARGIN = 1.15
"""By how much few tokens may take less, each, than many do."""
COPIES_OF_SCORES = 1.3
"""Scores, and what of their softmax and mask is there at the same time (docs/reliability.md)."""
COPIES_OF_COLUMNS = 2
COPIES_OF_LOGITS = 6
"""Logits in 32-bit floats, probabilities, sorted candidates, masks."""
FUSED_WIDTHS = {64, 80, 128}
"""Of heads for which Metal's attention makes no array of scores."""
HEAD_COUNTS = ("n_heads", "num_heads", "num_attention_heads", "n_head")
"""What mlx-lm's attention classes call it."""


def memory_costs(model: Model, states: SlotStates, width: int) -> MemoryCosts:
    """``states``: empty slots of the types that are served. ``width``: of the logits."""
    module, n_embd = model.module, model.info.n_embd
    _evaluate(model, states)  # whatever is made once only
    sizes = states.layer_sizes()
    fixed, windows = states.uncut_sizes(0)
    states.truncate(0, 0)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    _evaluate(model, states)
    mx.synchronize()
    transient = mx.get_peak_memory() - before
    states.truncate(0, 0)
    compute, numbers = _compute_bytes(module), max((n for _, n in sizes), default=0)
    as_held = all(nbytes == n * compute for nbytes, n in sizes)
    n_heads = _n_heads(module, n_embd)
    fused = on_metal() and n_embd // n_heads in FUSED_WIDTHS
    return MemoryCosts(
        token=int(MARGIN * transient / N_TOKENS),
        score=0.0 if fused else COPIES_OF_SCORES * n_heads * compute,
        column=0 if as_held else COPIES_OF_COLUMNS * numbers * compute,
        row=COPIES_OF_LOGITS * 4 * width,
        kv=sum(nbytes for nbytes, _ in sizes),
        layer_kv=max((nbytes for nbytes, _ in sizes), default=0),
        fixed=fixed,
        windows=tuple(windows),
    )


def _evaluate(model: Model, states: SlotStates) -> None:
    """A chunk of a prompt in slot 0."""
    if model.is_encoder:
        mx.eval(hidden_states(model)(mx.zeros((1, N_TOKENS), mx.int32), mx.array([N_TOKENS])))
    else:
        model.module(mx.array([[0] * N_TOKENS]), cache=states.prompt_chunk(0, N_TOKENS))
        mx.eval(states.arrays())


def _compute_bytes(module: Any) -> int:
    """Of a number that the model computes with: quantised weights have scales of that type."""
    kinds = [value.dtype for _, value in named_parameters(module)]
    return max((kind.size for kind in kinds if mx.issubdtype(kind, mx.floating)), default=4)


def _n_heads(module: Any, n_embd: int) -> int:
    """Query heads of the layer that has most; where nothing tells, heads are taken to be narrow."""
    parts = [part for _, part in module.named_modules()]
    counts = [getattr(part, name, 0) for part in parts for name in HEAD_COUNTS]
    return max([n for n in counts if isinstance(n, int)], default=0) or max(1, n_embd // 32)
