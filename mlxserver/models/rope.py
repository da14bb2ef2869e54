"""Gives the layers of a module the rotary embedding that its metadata and the options ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from mlxserver.models.errors import ModelError
from mlxserver.models.rope_options import (
    RopeOptions,
    RopeParameters,
    TrainedRope,
    effective,
    in_window,
    notes,
)

_WINDOWED = ("gemma3_text", "gpt_oss")
"""The model types whose layers with a sliding window are known to take base and scale of their own."""


def set_rope(module: Any, model_type: str, trained: TrainedRope, given: RopeOptions) -> list[str]:
    """Replaces the rotary embeddings of all layers; returns lines for the log. Raises ModelError."""
    full = effective(trained, given)
    windowed = windowed_layers(module, model_type)
    for number, layer in enumerate(module.layers):
        parameters = in_window(full, trained) if windowed[number] else full
        factors = None if windowed[number] else trained.factors
        for holder, name, rope in rotary_parts(layer):
            setattr(holder, name, make_rope(n_dims(rope), is_traditional(rope), parameters, factors))
    return notes(full, given)


def make_rope(
    dims: int, traditional: bool, parameters: RopeParameters, factors: Sequence[float] | None
) -> Any:
    """A plain embedding where it can express the parameters, else one with explicit frequencies."""
    from mlx.nn.layers.positional_encoding import RoPE
    from mlx_lm.models.rope_utils import YarnRoPE

    if factors is None and not parameters.ext_factor and parameters.magnitude == 1.0:
        return RoPE(dims, traditional, parameters.base, parameters.scale)
    if factors is not None and 2 * len(factors) != dims:
        raise ModelError(f"{len(factors)} rope factors for {dims} dimensions")
    rope = YarnRoPE(dims, traditional)
    rope.mscale = parameters.magnitude
    rope._freqs = wavelengths(dims, parameters, factors)
    return rope


def wavelengths(dims: int, parameters: RopeParameters, factors: Sequence[float] | None) -> mx.array:
    """(dims / 2,): the positions that turn each pair of dimensions by one radian."""
    plain = parameters.base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)
    mixes = [parameters.mix(pair, dims) for pair in range(dims // 2)]
    scales = mx.array([parameters.scale * (1.0 - mix) + mix for mix in mixes])
    return plain / scales if factors is None else plain * mx.array(list(factors)) / scales


def rotary_parts(layer: Any) -> Iterator[tuple[Any, str, Any]]:
    """(module, attribute, rotary embedding) for each in the layer. Raises ModelError for an unknown kind."""
    from mlx.nn.layers.positional_encoding import RoPE
    from mlx_lm.models.rope_utils import Llama3RoPE, SuScaledRoPE, YarnRoPE

    for holder in layer.modules():
        for name, part in list(holder.children().items()):
            if isinstance(part, RoPE | Llama3RoPE | SuScaledRoPE | YarnRoPE):
                yield holder, name, part
            elif "rope" in name or "rotary" in name:
                if type(part).__name__ != "NoPE":
                    raise ModelError(f"the rotary embedding {type(part).__name__} cannot be changed")


def n_dims(rope: Any) -> int:
    return int(rope.dims if hasattr(rope, "dims") else rope.dim)


def is_traditional(rope: Any) -> bool:
    return bool(getattr(rope, "traditional", False))


def windowed_layers(module: Any, model_type: str) -> list[bool]:
    """Which layers llama.cpp takes for ones with a sliding window. Raises ModelError if that is not known."""
    from mlx_lm.models.cache import ChunkedKVCache, RotatingKVCache, make_prompt_cache

    n_layers = len(module.layers)
    if model_type == "gemma2":  # mlx-lm's class has no windows
        return [number % 2 == 0 for number in range(n_layers)]
    caches = make_prompt_cache(module)
    found = [isinstance(cache, RotatingKVCache | ChunkedKVCache) for cache in caches]
    if any(found) and model_type not in _WINDOWED:
        raise ModelError(f"the rotary embedding of {model_type}'s sliding windows is not known")
    return found if len(found) == n_layers else [False] * n_layers
