"""A GGUF file's tensors as the parameters of an mlx-lm module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import gguf.quants
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from mlx.utils import tree_flatten

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf import rope
from mlxserver.models.gguf.architectures import Architecture, module_path
from mlxserver.models.gguf.blocks import GROUP, REPACKABLE, Packed, repack, repack_mxfp4
from mlxserver.models.gguf.model_file import ModelFile
from mlxserver.models.gguf.reader import Tensor

_FLOATS = {Type.F32, Type.F16, Type.BF16}
_CHUNK_BYTES = 1 << 16


@dataclass(slots=True)
class Loaded:
    """What became of the quantised tensors."""

    packed: Counter[str] = field(default_factory=Counter)
    """GGUF type → number of tensors that stay quantised"""
    dequantized: Counter[str] = field(default_factory=Counter)


def load_weights(
    module: nn.Module, file: ModelFile, architecture: Architecture, dtype: mx.Dtype, keep: bool
) -> Loaded:
    """Fills ``module``, tensor by tensor, in ``dtype``; with ``keep`` quantised matrices stay quantised if MLX can.

    Raises ModelError for a tensor without a place, a place without a tensor, or a shape that does not fit.
    """
    shapes = {name: value.shape for name, value in tree_flatten(module.parameters())}
    quantizable = {name for name, part in module.named_modules() if hasattr(part, "to_quantized")}
    formats: dict[str, dict[str, Any]] = {}
    weights: list[tuple[str, mx.array]] = []
    loaded = Loaded()
    for tensor in file.tensors.values():
        if tensor.name in rope.TENSORS:
            continue
        path = module_path(tensor.name, architecture)
        if path not in shapes:
            raise ModelError(
                f"{file.path}: {architecture.model_type} has no place for the tensor {tensor.name!r}"
            )
        owner = path.removesuffix(".weight")
        order = _row_order(tensor, architecture, file)
        packed = _packed(tensor, order) if keep and owner in quantizable else None
        if packed is None:
            parts = {
                "weight": _dense(tensor, order, architecture, dtype).reshape(_fit(tensor, shapes[path], file))
            }
            weights.append((path, parts["weight"]))
        else:
            formats[owner] = {"group_size": GROUP, "bits": packed.bits, "mode": packed.mode}
            parts = _arrays(packed, tensor, dtype)
            weights.extend((f"{owner}.{name}", value) for name, value in parts.items())
        # One tensor at a time, so that the converted copies never pile up beside the file's.
        mx.eval(parts)
        _count(loaded, tensor, packed is not None)
    if formats:
        nn.quantize(module, class_predicate=lambda name, _: formats.get(name, False))
    try:
        module.load_weights(weights, strict=True)
    except ValueError as error:
        raise ModelError(f"{file.path}: {_one_line(error)}") from error
    return loaded


def _count(loaded: Loaded, tensor: Tensor, packed: bool) -> None:
    if packed:
        loaded.packed[tensor.type.name] += 1
    elif tensor.type not in _FLOATS:
        loaded.dequantized[tensor.type.name] += 1


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _fit(tensor: Tensor, wanted: tuple[int, ...], file: ModelFile) -> tuple[int, ...]:
    """``wanted``, which is the tensor's shape, but for a vector that serves as a matrix of one row."""
    if tensor.shape != wanted and (1, *tensor.shape) != wanted:
        raise ModelError(f"{file.path}: {tensor.name} has the shape {tensor.shape}, {wanted} is wanted")
    return wanted


def _row_order(
    tensor: Tensor, architecture: Architecture, file: ModelFile
) -> np.ndarray[Any, np.dtype[np.intp]] | None:
    """The order of rows that undoes the converter's permutation: pairs (i, i + d/2) of a head are neighbours."""
    part = tensor.name.rsplit(".", 2)[-2]
    if not architecture.permuted or part not in ("attn_q", "attn_k"):
        return None
    kv = file.hyperparameters
    heads = kv.count("attention.head_count")
    if part == "attn_k":
        heads = kv.count("attention.head_count_kv", heads)
    n_rows = tensor.shape[0]
    if n_rows % (2 * heads):
        raise ModelError(f"{file.path}: {tensor.name} has {n_rows} rows for {heads} heads")
    return np.arange(n_rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _packed(tensor: Tensor, order: np.ndarray[Any, np.dtype[np.intp]] | None) -> Packed | None:
    rows = tensor.data if order is None or len(tensor.shape) < 2 else tensor.data[order]
    if tensor.type in REPACKABLE:
        return repack(rows, tensor.type)
    return repack_mxfp4(rows) if tensor.type == Type.MXFP4 else None


def _arrays(packed: Packed, tensor: Tensor, dtype: mx.Dtype) -> dict[str, mx.array]:
    def shaped(values: np.ndarray[Any, Any]) -> mx.array:
        return mx.array(values.reshape(*tensor.shape[:-1], -1))

    if packed.biases is None:
        return {"weight": shaped(packed.weight), "scales": shaped(packed.scales)}
    return {
        "weight": shaped(packed.weight),
        "scales": shaped(packed.scales).astype(dtype),
        "biases": shaped(packed.biases).astype(dtype),
    }


def _dense(
    tensor: Tensor,
    order: np.ndarray[Any, np.dtype[np.intp]] | None,
    architecture: Architecture,
    dtype: mx.Dtype,
) -> mx.array:
    values = _floats(tensor)
    if order is not None:
        values = values[mx.array(order)] if len(tensor.shape) > 1 else values.reshape(-1)[mx.array(order)]
    if architecture.norm_offset and tensor.name.endswith("norm.weight"):
        values = values.astype(mx.float32) - architecture.norm_offset
    return values.astype(dtype)


def _floats(tensor: Tensor) -> mx.array:
    """(rows, row length), in the file's own type where that is a float and else in 32-bit floats."""
    rows = tensor.data
    if tensor.type == Type.F32:
        return mx.array(rows.view(np.float32))
    if tensor.type == Type.F16:
        return mx.array(rows.view(np.float16))
    if tensor.type == Type.BF16:
        return mx.array(rows.view(np.uint16)).view(mx.bfloat16)
    if tensor.type in REPACKABLE:
        packed = repack(rows, tensor.type)
        matrix, scales, biases = mx.array(packed.weight), mx.array(packed.scales), mx.array(packed.biases)
        return mx.dequantize(matrix, scales, biases, group_size=GROUP, bits=packed.bits)
    return mx.array(_dequantize(rows, tensor))


def _dequantize(rows: np.ndarray[Any, np.dtype[np.uint8]], tensor: Tensor) -> np.ndarray[Any, Any]:
    """gguf converts 16 rows at a time, so several short rows are handed over as one long one."""
    joined = max(1, _CHUNK_BYTES // rows.shape[1])
    whole = len(rows) // joined * joined
    try:
        parts = [
            gguf.quants.dequantize(part, tensor.type).reshape(-1, tensor.shape[-1])
            for part in (rows[:whole].reshape(-1, joined * rows.shape[1]), rows[whole:])
            if len(part)
        ]
    except NotImplementedError as error:
        raise ModelError(f"the tensor {tensor.name!r} has the unsupported type {tensor.type.name}") from error
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
