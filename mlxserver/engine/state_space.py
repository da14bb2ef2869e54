"""What all state of a process depends on, as one name that other processes compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mlxserver.engine.config import EngineConfig
from mlxserver.kv.state_file import raw_bytes
from mlxserver.models.model import Model

SAMPLE = 64
"""Values of each weight whose order counts too."""

_BITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}


def state_space(model: Model, config: EngineConfig) -> str:
    """Names weights, hyperparameters, compute type and KV types; asked before any adapter is put in.

    Every weight is read once: models may differ in a few rows only, those of new tokens for one.
    """
    info = model.info
    parameters: Any = tree_flatten(model.module.parameters())
    digest = hashlib.blake2b(info.rope.encode(), digest_size=16)
    for name, weight in parameters:
        digest.update(f"{name}{weight.shape}{weight.dtype}".encode())
        digest.update(raw_bytes(weight.reshape(-1)[:SAMPLE]))
        for sums in _sums(weight):
            digest.update(raw_bytes(sums))
    for setting in _settings(model.module):
        digest.update(setting.encode())
    facts = (info.architecture, info.n_params, info.ftype, config.cache_type_k, config.cache_type_v)
    return f"{facts} {config.swa_full} {digest.hexdigest()}"


def _sums(weight: mx.array) -> list[mx.array]:
    """The weight's bits as whole numbers, summed up along its rows and along its columns."""
    if weight.size == 0 or weight.ndim == 0:
        return []
    bits = weight.view(_BITS[weight.dtype.size])
    return [mx.sum(bits, axis=axis) for axis in range(-min(2, weight.ndim), 0)]


def _settings(module: Any) -> Iterator[str]:
    """What the parts of a model keep beside their weights: epsilons, windows, scales, head counts."""
    for name, part in sorted(module.named_modules()):
        for key, value in sorted(vars(part).items()):
            if isinstance(value, (bool, int, float, str)) or is_dataclass(value):
                yield f"{name}.{key}={value!r};"
