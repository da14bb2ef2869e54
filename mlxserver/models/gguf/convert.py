"""One tensor of a GGUF file as MLX arrays."""

from __future__ import annotations

from typing import Any

import gguf.quants
import mlx.core as mx
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.blocks import REPACKABLE, Bytes, Packed, repack, repack_mxfp4
from mlxserver.models.gguf.reader import Tensor

FLOATS = frozenset({Type.F32, Type.F16, Type.BF16})
QUANTIZED = REPACKABLE | {Type.MXFP4}
"""The types that MLX can keep quantised."""

_CHUNK_VALUES = 1 << 18


def packed(tensor: Tensor, rows: Bytes, dtype: mx.Dtype) -> tuple[Packed, dict[str, mx.array]]:
    """``rows`` of a type in QUANTIZED as ``weight``, ``scales`` and ``biases``, the last two in ``dtype``."""
    quantized = repack_mxfp4(rows) if tensor.type == Type.MXFP4 else repack(rows, tensor.type)

    def shaped(values: np.ndarray[Any, Any]) -> mx.array:
        return mx.array(values.reshape(*tensor.shape[:-1], -1))

    arrays = {"weight": shaped(quantized.weight), "scales": shaped(quantized.scales)}
    if quantized.biases is not None:
        arrays["scales"] = arrays["scales"].astype(dtype)
        arrays["biases"] = shaped(quantized.biases).astype(dtype)
    return quantized, arrays


def floats(tensor: Tensor, rows: Bytes) -> mx.array:
    """``rows`` as (rows, row length), in the file's own type where that is a float, else in 32-bit floats."""
    if tensor.type == Type.F32:
        return mx.array(rows.view(np.float32))
    if tensor.type == Type.F16:
        return mx.array(rows.view(np.float16))
    if tensor.type == Type.BF16:
        return mx.array(rows.view(np.uint16)).view(mx.bfloat16)
    return mx.array(_dequantize(tensor, rows))


def _dequantize(tensor: Tensor, rows: Bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """In pieces that fit the processor's cache: gguf alone takes 16 rows at a time, however short."""
    block, block_bytes = GGML_QUANT_SIZES[tensor.type]
    blocks = rows.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block), np.float32)
    step = _CHUNK_VALUES // block
    try:
        for at in range(0, len(blocks), step):
            piece = gguf.quants.dequantize(blocks[at : at + step].reshape(1, -1), tensor.type)
            values[at : at + step] = piece.reshape(-1, block)
    except NotImplementedError as error:
        raise ModelError(f"the tensor {tensor.name!r} has the unsupported type {tensor.type.name}") from error
    return values.reshape(len(rows), -1)
