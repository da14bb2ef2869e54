"""Rotary embedding: GGUF's scaling keys and frequency tensors as mlx-lm's ``rope_scaling``."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.model_file import ModelFile

FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TENSORS = frozenset({FREQUENCIES, LONG, SHORT})
"""Tensors that are read here and are no weights of a module."""


def rope_scaling(file: ModelFile) -> dict[str, Any] | None:
    """mlx-lm's ``rope_scaling``, or None for a plain one. Raises ModelError for an unknown kind."""
    if LONG in file.tensors:
        return _longrope(file)
    if FREQUENCIES in file.tensors:
        # Only makes the class with explicit frequencies; set_frequencies gives it the file's.
        return {"type": "llama3", "factor": 1.0}
    kv = file.hyperparameters
    factor = kv.number("rope.scaling.factor", 0.0) or kv.number("rope.scale_linear", 0.0)
    kind = kv.text("rope.scaling.type", "linear")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(file, factor)
    raise ModelError(f"the rope scaling {kind!r} is not supported")


def set_frequencies(module: Any, file: ModelFile) -> None:
    """Divides every layer's frequencies by the factors in ``rope_freqs.weight``, where there are any."""
    if FREQUENCIES not in file.tensors:
        return
    factors = _factors(file, FREQUENCIES)
    base = file.hyperparameters.number("rope.freq_base", 10000.0)
    for layer in module.layers:
        rope = layer.self_attn.rope
        if hasattr(rope, "_freqs"):
            if 2 * len(factors) != rope.dims:
                raise ModelError(f"{file.path}: {len(factors)} rope factors for {rope.dims} dimensions")
            wavelengths = base ** (mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims)
            rope._freqs = wavelengths * mx.array(factors)


def _longrope(file: ModelFile) -> dict[str, Any]:
    kv = file.hyperparameters
    context = kv.count("context_length")
    long, short = _factors(file, LONG), _factors(file, SHORT)
    return {
        "type": "longrope",
        "long_factor": long,
        "short_factor": short,
        "original_max_position_embeddings": kv.count("rope.scaling.original_context_length", context),
    }


def _yarn(file: ModelFile, factor: float) -> dict[str, Any]:
    kv = file.hyperparameters
    context = kv.count("context_length")
    return {
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": kv.count("rope.scaling.original_context_length", context),
        "beta_fast": kv.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": kv.number("rope.scaling.yarn_beta_slow", 1.0),
    }


def _factors(file: ModelFile, name: str) -> list[float]:
    tensor = file.tensors.get(name)
    if tensor is None or len(tensor.shape) != 1 or tensor.type != GGMLQuantizationType.F32:
        raise ModelError(f"{file.path}: {name} is missing or no list of 32-bit floats")
    return [float(value) for value in tensor.data.view(np.float32)[0]]
