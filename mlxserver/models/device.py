"""What is decided by the device the weights are for."""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx
from mlx_lm.models.switch_layers import SwitchLinear

from mlxserver.models.errors import ModelError

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_FTYPES = {mx.float32: "all F32", mx.float16: "F16", mx.bfloat16: "BF16"}

WeightPolicy = Literal["auto", "keep", "dequantize"]


def on_metal() -> bool:
    return bool(mx.metal.is_available()) and mx.default_device() == mx.gpu


def wire_memory() -> None:
    """Let Metal keep what it recommends in memory; other backends know no such limit."""
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))


def compute_dtype(name: str, own: mx.Dtype) -> mx.Dtype:
    """The option's dtype; ``auto`` is float32 on the CPU and ``own``, the weights' type, on Metal."""
    if name == "auto":
        return own if on_metal() else mx.float32
    if name not in DTYPES:
        raise ModelError(f"unknown dtype {name!r} (known: auto, {', '.join(DTYPES)})")
    return DTYPES[name]


def keeps_quantized(policy: WeightPolicy) -> bool:
    """``auto`` dequantises on the CPU, where MLX multiplies quantised matrices far slower than floats."""
    return policy == "keep" or (policy == "auto" and on_metal())


def float_type_name(dtype: mx.Dtype) -> str:
    """llama.cpp's name of a file whose weights all have this type."""
    return _FTYPES[dtype]


def require_experts(module: Any, dtype: mx.Dtype) -> None:
    """MLX's CPU backend multiplies gathered matrices, the experts of a mixture, in 32-bit floats only."""
    if dtype != mx.float32 and not on_metal() and any(isinstance(m, SwitchLinear) for m in module.modules()):
        raise ModelError("a mixture-of-experts model runs in float32 only on the CPU")
