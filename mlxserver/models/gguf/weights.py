"""A GGUF file's tensors as the parameters of an mlx-lm module."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from gguf.constants import GGMLQuantizationType as Type
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import quantize

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf import classifier, rope
from mlxserver.models.gguf.architectures import Architecture, module_path
from mlxserver.models.gguf.blocks import GROUP, Bytes, Packed
from mlxserver.models.gguf.convert import FLOATS, QUANTIZED, Values, float_array, pack, packed_arrays, unpack
from mlxserver.models.gguf.model_file import ModelFile
from mlxserver.models.gguf.reader import Tensor
from mlxserver.models.parameters import named_parameters

MAX_THREADS = 8

Converted = tuple[str, Packed | Values]
"""The path of the parameter, and its values."""


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
    others = {*rope.TENSORS, *classifier.TENSORS}
    tensors = [tensor for tensor in file.tensors.values() if tensor.name not in others]
    for tensor, converted in _ahead(filler.convert, tensors):
        filler.place(tensor, converted)
    filler.finish()
    return filler.loaded


def _ahead(
    convert: Callable[[Tensor], Converted], tensors: Iterable[Tensor]
) -> Iterator[tuple[Tensor, Converted]]:
    """Converts on all cores, at most one tensor a core ahead of what was taken."""
    n_threads = min(os.cpu_count() or 1, MAX_THREADS)
    with ThreadPoolExecutor(n_threads) as pool:
        pending: deque[tuple[Tensor, Future[Converted]]] = deque()
        for tensor in tensors:
            pending.append((tensor, pool.submit(convert, tensor)))
            if len(pending) > n_threads:
                first, converted = pending.popleft()
                yield first, converted.result()
        for last, converted in pending:
            yield last, converted.result()


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

    def convert(self, tensor: Tensor) -> Converted:
        """The part of the work that touches no array, and so runs in any thread."""
        path = module_path(tensor.name, self._architecture)
        if path not in self._shapes:
            kind = self._architecture.model_type
            raise ModelError(f"{self._file.path}: {kind} has no place for the tensor {tensor.name!r}")
        shape = self._shapes[path]
        # A vector may serve as a matrix of one row.
        if shape not in (tensor.shape, (1, *tensor.shape)):
            raise ModelError(f"{self._file.path}: {tensor.name} is {tensor.shape}, {shape} is wanted")
        convert = pack if self._keep and self._keepable(tensor, path) else unpack
        return path, convert(tensor, self._rows(tensor))

    def place(self, tensor: Tensor, converted: Converted) -> None:
        """Makes and evaluates the arrays of one tensor: copies never pile up beside the file's pages."""
        path, values = converted
        if isinstance(values, Packed):
            arrays = self._packed(tensor, path.removesuffix(".weight"), values)
        else:
            arrays = {path: self._dense(tensor, path, values)}
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

    def _keepable(self, tensor: Tensor, path: str) -> bool:
        part = self._quantizable.get(path.removesuffix(".weight"))
        if part is None or tensor.type not in QUANTIZED:
            return False
        # An mxfp4 embedding would hand bfloat16 to all layers.
        return tensor.type != Type.MXFP4 or not isinstance(part, Embedding)

    def _packed(self, tensor: Tensor, owner: str, values: Packed) -> dict[str, mx.array]:
        self._formats[owner] = {"group_size": GROUP, "bits": values.bits, "mode": values.mode}
        self.loaded.packed[tensor.type.name] += 1
        arrays = packed_arrays(tensor, values, self._dtype)
        return {f"{owner}.{name}": array for name, array in arrays.items()}

    def _dense(self, tensor: Tensor, path: str, values: Values) -> mx.array:
        array = float_array(tensor, values).reshape(self._shapes[path])
        offset = self._architecture.norm_offset
        if offset and tensor.name.endswith("norm.weight"):
            array = array.astype(mx.float32) - offset
        if tensor.type not in FLOATS:
            self.loaded.dequantized[tensor.type.name] += 1
        return array.astype(self._dtype)

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
        kv = self._file.hyperparameters
        heads = kv.count("attention.head_count")
        if part == "attn_k":
            heads = kv.count("attention.head_count_kv", heads)
        if n_rows % (2 * heads):
            raise ModelError(f"{self._file.path}: {tensor.name} has {n_rows} rows for {heads} heads")
        return head_order(n_rows, heads)


def head_order(n_rows: int, n_heads: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Where mlx-lm's rows of queries or keys are among those of a file of a permuted architecture.

    The converter makes neighbours of the values i and i + d/2 of a head; this takes them apart.
    """
    return np.arange(n_rows).reshape(n_heads, -1, 2).swapaxes(1, 2).ravel()
