"""A GGUF file's tensors as the parameters of an mlx-lm module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import quantize

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf import rope
from mlxserver.models.gguf.architectures import Architecture, module_path
from mlxserver.models.gguf.blocks import GROUP, Bytes
from mlxserver.models.gguf.convert import FLOATS, QUANTIZED, floats, packed
from mlxserver.models.gguf.model_file import ModelFile
from mlxserver.models.gguf.reader import Tensor
from mlxserver.models.parameters import named_parameters


@dataclass(slots=True)
class Loaded:
    """What became of the tensors: GGUF type → their number."""

    packed: Counter[str] = field(default_factory=Counter)
    """Quantised and kept so."""
    dequantized: Counter[str] = field(default_factory=Counter)


def load_weights(
    module: Any, file: ModelFile, architecture: Architecture, dtype: mx.Dtype, keep: bool
) -> Loaded:
    """Fills ``module`` in ``dtype``; with ``keep`` a quantised matrix stays quantised if MLX has its format.

    Raises ModelError for a tensor without a place, a place without a tensor, or a shape that does not fit.
    """
    filler = _Filler(module, file, architecture, dtype, keep)
    for tensor in file.tensors.values():
        if tensor.name not in rope.TENSORS:
            filler.add(tensor)
    filler.finish()
    return filler.loaded


class _Filler:
    def __init__(
        self, module: Any, file: ModelFile, architecture: Architecture, dtype: mx.Dtype, keep: bool
    ) -> None:
        self._module, self._file, self._architecture = module, file, architecture
        self._dtype, self._keep = dtype, keep
        self._shapes = {name: value.shape for name, value in named_parameters(module)}
        self._quantizable = {
            name: part for name, part in module.named_modules() if hasattr(part, "to_quantized")
        }
        self._formats: dict[str, dict[str, Any]] = {}
        self._weights: dict[str, mx.array] = {}
        self.loaded = Loaded()

    def add(self, tensor: Tensor) -> None:
        """Converts and evaluates one tensor, so that copies never pile up beside the file's pages."""
        path = module_path(tensor.name, self._architecture)
        if path not in self._shapes:
            kind = self._architecture.model_type
            raise ModelError(f"{self._file.path}: {kind} has no place for the tensor {tensor.name!r}")
        shape = self._shapes[path]
        # A vector may serve as a matrix of one row.
        if shape not in (tensor.shape, (1, *tensor.shape)):
            raise ModelError(f"{self._file.path}: {tensor.name} is {tensor.shape}, {shape} is wanted")
        owner = path.removesuffix(".weight")
        if self._keep and self._keepable(tensor, owner):
            arrays = self._add_packed(tensor, owner)
        else:
            arrays = self._add_dense(tensor, path)
        mx.eval(arrays)
        self._weights.update(arrays)

    def finish(self) -> None:
        if self._formats:
            quantize(self._module, class_predicate=lambda name, _: self._formats.get(name, False))
        try:
            self._module.load_weights(list(self._weights.items()), strict=True)
        except ValueError as error:
            message = " ".join(str(error).split())[:300]
            raise ModelError(f"{self._file.path}: {message}") from error

    def _keepable(self, tensor: Tensor, owner: str) -> bool:
        if tensor.type not in QUANTIZED or owner not in self._quantizable:
            return False
        # An mxfp4 embedding would hand bfloat16 to all layers.
        return tensor.type != Type.MXFP4 or not isinstance(self._quantizable[owner], Embedding)

    def _add_packed(self, tensor: Tensor, owner: str) -> dict[str, mx.array]:
        quantized, arrays = packed(tensor, self._rows(tensor), self._dtype)
        self._formats[owner] = {"group_size": GROUP, "bits": quantized.bits, "mode": quantized.mode}
        self.loaded.packed[tensor.type.name] += 1
        return {f"{owner}.{name}": values for name, values in arrays.items()}

    def _add_dense(self, tensor: Tensor, path: str) -> dict[str, mx.array]:
        values = floats(tensor, self._rows(tensor)).reshape(self._shapes[path])
        offset = self._architecture.norm_offset
        if offset and tensor.name.endswith("norm.weight"):
            values = values.astype(mx.float32) - offset
        if tensor.type not in FLOATS:
            self.loaded.dequantized[tensor.type.name] += 1
        return {path: values.astype(self._dtype)}

    def _rows(self, tensor: Tensor) -> Bytes:
        """The tensor's rows in mlx-lm's order; a vector counts as rows of one value."""
        part = tensor.name.rsplit(".", 2)[-2]
        if not self._architecture.permuted or part not in ("attn_q", "attn_k"):
            return tensor.data
        rows = tensor.data
        if len(tensor.shape) == 1 and tensor.type in FLOATS:
            rows = rows.reshape(tensor.shape[0], -1)
        ordered: Bytes = rows[self._order(tensor, part, len(rows))]
        return ordered

    def _order(self, tensor: Tensor, part: str, n_rows: int) -> np.ndarray[Any, np.dtype[np.intp]]:
        """The converter makes neighbours of the values i and i + d/2 of a head; this takes them apart."""
        kv = self._file.hyperparameters
        heads = kv.count("attention.head_count")
        if part == "attn_k":
            heads = kv.count("attention.head_count_kv", heads)
        if n_rows % (2 * heads):
            raise ModelError(f"{self._file.path}: {tensor.name} has {n_rows} rows for {heads} heads")
        return np.arange(n_rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()
