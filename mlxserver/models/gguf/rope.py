"""Rotary embedding: what a GGUF file's keys and frequency tensors say of it."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.model_file import ModelFile
from mlxserver.models.rope_options import SCALING_KINDS, TrainedRope

FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TENSORS = frozenset({FREQUENCIES, LONG, SHORT})
"""Tensors that are read here and are no weights of a module."""


def trained_rope(file: ModelFile) -> TrainedRope:
    """Raises ModelError for an unknown kind of scaling."""
    kv = file.hyperparameters
    factor = kv.number("rope.scaling.factor", 0.0) or kv.number("rope.scale_linear", 0.0)
    base, scale = kv.number("rope.freq_base", 10000.0), 1.0 / factor if factor else 1.0
    scaling = kv.text("rope.scaling.type", "linear")
    if scaling not in SCALING_KINDS or scale < 0 or base <= 1.0:
        raise ModelError(f"the rope scaling {scaling!r} with {factor:g} and {base:g} is not supported")
    has_own_window = file.architecture == "gemma3"
    return TrainedRope(
        base=base,
        orig_ctx=kv.count("rope.scaling.original_context_length", kv.count("context_length")),
        scale=scale,
        scaling=scaling,
        attn_factor=kv.number("rope.scaling.attn_factor", 1.0),
        factors=_all_factors(file),
        window_base=kv.number("rope.freq_base_swa", 10000.0 if has_own_window else base),
        window_scale=1.0 if has_own_window else scale,
    )


def _all_factors(file: ModelFile) -> list[float] | None:
    for name in (FREQUENCIES, LONG):
        if name in file.tensors:
            return _factors(file, name)
    return None


def _factors(file: ModelFile, name: str) -> list[float]:
    tensor = file.tensors[name]
    if len(tensor.shape) != 1 or tensor.type != GGMLQuantizationType.F32:
        raise ModelError(f"{file.path}: {name} is no list of 32-bit floats")
    return [float(value) for value in tensor.data.view(np.float32)[0]]
