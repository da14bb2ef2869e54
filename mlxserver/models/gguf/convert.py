"""One tensor of a GGUF file as MLX arrays: first plain numpy, which any thread may do, then the arrays."""

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

_VIEWS = {Type.F32: np.float32, Type.F16: np.float16, Type.BF16: np.uint16}
FLOATS = frozenset(_VIEWS)
QUANTIZED = REPACKABLE | {Type.MXFP4}
"""The types that MLX can keep quantised."""

_CHUNK_VALUES = 1 << 18


Values = np.ndarray[Any, Any]


def pack(tensor: Tensor, rows: Bytes) -> Packed:
    """``rows`` of a type in QUANTIZED in MLX's layout."""
    return repack_mxfp4(rows) if tensor.type == Type.MXFP4 else repack(rows, tensor.type)


def unpack(tensor: Tensor, rows: Bytes) -> Values:
    """``rows`` as (rows, row length): 32-bit floats, or a view of 16-bit ones (bfloat16 as uint16)."""
    if tensor.type in _VIEWS:
        return rows.view(_VIEWS[tensor.type])
    return _dequantize(tensor, rows)


def float_array(tensor: Tensor, values: Values) -> mx.array:
    """What ``unpack`` gave, as an array of the file's own float type or float32."""
    array = mx.array(values)
    return array.view(mx.bfloat16) if tensor.type == Type.BF16 else array


def packed_arrays(tensor: Tensor, packed: Packed, dtype: mx.Dtype) -> dict[str, mx.array]:
    """``weight``, ``scales`` and, but for MXFP4, ``biases``; the last two in ``dtype`` then."""

    def shaped(values: Values) -> mx.array:
        return mx.array(values.reshape(*tensor.shape[:-1], -1))

    arrays = {"weight": shaped(packed.weight), "scales": shaped(packed.scales)}
    if packed.biases is not None:
        arrays["scales"] = arrays["scales"].astype(dtype)
        arrays["biases"] = shaped(packed.biases).astype(dtype)
    return arrays


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
