"""What all state of a process depends on, as one name that other processes compare."""

from __future__ import annotations

import hashlib
from typing import Any

from mlx.utils import tree_flatten

from mlxserver.engine.config import EngineConfig
from mlxserver.kv.state_file import raw_bytes
from mlxserver.models.model import Model

SAMPLE = 64
"""Values of each weight that tell models of one shape apart."""


def state_space(model: Model, config: EngineConfig) -> str:
    """Names weights, rotary embedding, compute type and KV types; asked before any adapter is put in."""
    info = model.info
    parameters: Any = tree_flatten(model.module.parameters())
    digest = hashlib.blake2b(info.rope.encode(), digest_size=16)
    for name, weight in parameters:
        digest.update(f"{name}{weight.shape}{weight.dtype}".encode())
        digest.update(raw_bytes(weight.reshape(-1)[:SAMPLE]))
    facts = (info.architecture, info.n_params, info.ftype, config.cache_type_k, config.cache_type_v)
    return f"{facts} {config.swa_full} {digest.hexdigest()}"
