"""The layers of a model that adapters may touch, and what a pair for each of them looks like."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear, SwitchMLP

from mlxserver.models.parameters import named_parameters

Kind = Literal["linear", "embedding", "experts"]

KINDS: dict[type, Kind] = {
    Linear: "linear",
    QuantizedLinear: "linear",
    Embedding: "embedding",
    QuantizedEmbedding: "embedding",
    SwitchLinear: "experts",
    QuantizedSwitchLinear: "experts",
}
"""By the very class: one that is derived may do something else with its input."""

EXPERT_BLOCKS = (SwitchGLU, SwitchMLP)
"""What calls expert layers: (B, ..., in) and (B, ..., k) experts → (B, ..., k, out)."""


@dataclass(frozen=True, slots=True)
class Target:
    """``n_in`` of an embedding is its vocabulary. ``n_experts`` 0: no expert layer.

    ``block``: what calls an expert layer; None where that is none of EXPERT_BLOCKS.
    """

    layer: Any
    kind: Kind
    n_in: int
    n_out: int
    dtype: mx.Dtype
    n_experts: int = 0
    block: Any = None

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of ``a`` and ``b``."""
        experts = (self.n_experts,) if self.n_experts else ()
        return (*experts, self.n_in, rank), (*experts, rank, self.n_out)


def find_targets(module: Any) -> dict[str, Target]:
    """Module path → target. A layer that is found at several paths counts at its first one only."""
    common = _common_dtype(module)
    modules = dict(reversed(module.named_modules()))
    targets: dict[str, Target] = {}
    seen: set[int] = set()
    for path, layer in modules.items():
        kind = KINDS.get(base_class(layer))
        if kind and id(layer) not in seen:
            seen.add(id(layer))
            targets[path] = _target(layer, kind, common, modules[path.rpartition(".")[0]])
    return targets


def base_class(layer: Any) -> type:
    """The layer's class without what ``lora.layers`` made of it."""
    kind = type(layer)
    return getattr(kind, "base_class", kind)


def _target(layer: Any, kind: Kind, common: mx.Dtype, owner: Any) -> Target:
    *experts, n_rows, width = layer["weight"].shape
    n_columns = layer["scales"].shape[-1] * layer.group_size if "scales" in layer else width
    n_in, n_out = (n_rows, n_columns) if kind == "embedding" else (n_columns, n_rows)
    dtype = _dtype(layer, common)
    if kind != "experts":
        return Target(layer, kind, n_in, n_out, dtype)
    block = owner if base_class(owner) in EXPERT_BLOCKS else None
    return Target(layer, kind, n_in, n_out, dtype, experts[0], block)


def _dtype(layer: Any, common: mx.Dtype) -> mx.Dtype:
    """A quantised layer computes in the type of its scales, but where those are mere exponents."""
    own: mx.Dtype = layer["scales" if "scales" in layer else "weight"].dtype
    return own if mx.issubdtype(own, mx.floating) else common


def _common_dtype(module: Any) -> mx.Dtype:
    counts: Counter[mx.Dtype] = Counter()
    for _, value in named_parameters(module):
        if mx.issubdtype(value.dtype, mx.floating):
            counts[value.dtype] += value.size
    return counts.most_common(1)[0][0]
