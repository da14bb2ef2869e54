"""Rotary embedding: what a model folder's config.json, and the module made from it, say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import mlx.core as mx

from mlxserver.models.errors import ModelError
from mlxserver.models.rope import (
    is_traditional,
    make_rope,
    n_dims,
    rotary_parts,
    windowed_layers,
)
from mlxserver.models.rope_options import BETA_FAST, BETA_SLOW, FROM_MODEL, TrainedRope, effective

ROPE_KEYS = ("rope_theta", "rope_local_base_freq", "rope_scaling", "rope_parameters")


def trained_rope(module: Any, config: Mapping[str, Any]) -> TrainedRope:
    """``config`` is the text model's. Raises ModelError where the two do not tell all that is needed."""
    model_type = str(config.get("model_type", ""))
    if config.get("kv_lora_rank"):
        raise ModelError("multi-head latent attention has a part of the scaling outside the rotary embedding")
    full, windowed = _ropes(module, model_type)
    if not full:
        raise ModelError(f"the layers of {model_type} have no rotary embedding that can be changed")
    window = windowed[0] if windowed else None
    trained = _read(full[0], config, getattr(window, "base", None), getattr(window, "scale", None))
    for rope in full:
        _require_same(rope, trained)
    return trained


def _ropes(module: Any, model_type: str) -> tuple[list[Any], list[Any]]:
    """The rotary embeddings of the layers with full attention, and of those with a sliding window."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for layer, is_windowed in zip(module.layers, windowed_layers(module, model_type), strict=True):
        found[is_windowed].extend(rope for _, _, rope in rotary_parts(layer))
    return found


def _read(
    rope: Any, config: Mapping[str, Any], window_base: float | None, window_scale: float | None
) -> TrainedRope:
    from mlx.nn.layers.positional_encoding import RoPE
    from mlx_lm.models.rope_utils import YarnRoPE

    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    original = "original_max_position_embeddings"
    base = getattr(rope, "base", None) or config.get("rope_theta") or scaling.get("rope_theta")
    if not isinstance(base, float | int):
        raise ModelError("config.json does not tell rope_theta")
    plain = TrainedRope(
        base=float(base),
        orig_ctx=scaling.get(original) or config.get(original) or config.get("max_position_embeddings") or 0,
        window_base=window_base,
        window_scale=window_scale,
    )
    if isinstance(rope, RoPE):
        return replace(plain, scale=rope.scale)
    if isinstance(rope, YarnRoPE):
        return replace(
            plain,
            scaling="yarn",
            scale=1.0 / scaling.get("factor", 1.0),
            beta_fast=scaling.get("beta_fast", BETA_FAST),
            beta_slow=scaling.get("beta_slow", BETA_SLOW),
        )
    return replace(plain, factors=_factors(rope, plain.base), attn_factor=_magnitude(rope))


def _factors(rope: Any, base: float) -> list[float]:
    dims = n_dims(rope)
    factors: list[float] = (rope._freqs / base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)).tolist()
    return factors


def _require_same(rope: Any, trained: TrainedRope) -> None:
    """What was read must give the module's own embedding."""
    parameters = effective(trained, FROM_MODEL)
    made = make_rope(n_dims(rope), is_traditional(rope), parameters, trained.factors)
    same = mx.allclose(_wavelengths(made), _wavelengths(rope), rtol=1e-4, atol=0.0).item()
    if not same or abs(_magnitude(made) - _magnitude(rope)) > 1e-4:
        raise ModelError("config.json does not describe the rotary embedding of every layer")


def _wavelengths(rope: Any) -> mx.array:
    if hasattr(rope, "_freqs"):
        explicit: mx.array = rope._freqs
        return explicit
    powers = mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims
    return mx.power(rope.base, powers) / float(rope.scale)


def _magnitude(rope: Any) -> float:
    return float(getattr(rope, "mscale", getattr(rope, "_scale", 1.0)))
