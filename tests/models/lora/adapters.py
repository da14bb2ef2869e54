"""Random adapters for tiny models: in memory, and as GGUF files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxserver.models.lora.adapter import Adapter, LowRank, digest_of
from mlxserver.models.lora.targets import find_targets
from mlxserver.models.model import Model, ModelInfo
from tests.engine.bench import Letters
from tests.models import tiny

Matrices = dict[str, tuple[mx.array, mx.array]]
"""Module path -> a (in, rank), b (rank, out)."""


def as_model(module: nn.Module, architecture: str = "llama") -> Model:
    info = ModelInfo("tiny", architecture, tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32")
    return Model(module, Letters(), info)


def matrices(module: nn.Module, seed: int, rank: int, paths: Iterable[str] | None = None) -> Matrices:
    """Of all layers, or those at ``paths``; large enough to change the best tokens."""
    targets = find_targets(module)
    key = mx.random.key(seed)
    made: Matrices = {}
    for path in paths if paths is not None else targets:
        key, of_a, of_b = mx.random.split(key, 3)
        a, b = targets[path].shapes(rank)
        width = 9.0 if targets[path].kind == "embedding" else float(targets[path].n_in)
        scaled = mx.random.normal(a, key=of_a) / width**0.5, mx.random.normal(b, key=of_b) / rank**0.5
        made[path] = scaled
    mx.eval(made)
    return made


def adapter(module: nn.Module, seed: int, rank: int, scale: float = 0.5, **how: Any) -> Adapter:
    """One that was never a file; ``how``: ``paths``, ``in_head``."""
    in_head = how.pop("in_head", False)
    made = matrices(module, seed, rank, **how)
    dtypes = {path: target.dtype for path, target in find_targets(module).items()}
    parts = {
        path: LowRank(a.astype(dtypes[path]), b.astype(dtypes[path]), scale, in_head)
        for path, (a, b) in made.items()
    }
    return Adapter("", digest_of(parts, ()), MappingProxyType(parts))


def write_gguf(path: Path, tensors: dict[str, np.ndarray[Any, Any]], **keys: Any) -> Path:
    """``keys`` with ``_`` for ``.``-separated ones are given whole, in a dictionary named ``metadata``."""
    metadata = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
        **keys.get("metadata", {}),
    }
    writer = gguf.GGUFWriter(path, keys.get("arch", "llama"))
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
