"""A model's layers with low-rank products beside them.

A layer stays the very object that it was, of a class derived from its own: what its parameters are called and
who else reads them does not change, and taking an adapter out leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import mlx.core as mx

from mlxserver.models.lora.adapter import LowRank
from mlxserver.models.lora.rows import Rows
from mlxserver.models.lora.targets import KINDS, base_class


@dataclass(slots=True)
class Site:
    """What a layer with adapters knows of them: its path, their parts by digest, the rows' choice."""

    path: str
    rows: Rows
    parts: dict[str, LowRank] = field(default_factory=dict)


def adapt(layer: Any, site: Site) -> None:
    """``layer`` is one of targets.KINDS, or one of targets.EXPERT_BLOCKS, whose site has no parts."""
    layer.lora = site
    base: Any = type(layer)
    layer.__class__ = _adapted(base)


def restore(layer: Any) -> None:
    layer.__class__ = base_class(layer)
    del layer.lora


def is_adapted(layer: Any) -> bool:
    return isinstance(layer, _Adapted)


@cache
def _adapted(base: Any) -> Any:
    product = _PRODUCTS[KINDS[base]] if base in KINDS else _ExpertBlock
    return type(f"Lora{base.__name__}", (product, base), {"base_class": base})


class _Adapted:
    base_class: ClassVar[Any]
    lora: Site


class _Linear(_Adapted):
    def __call__(self, x: mx.array) -> mx.array:
        """(B, ..., in) → (B, ..., out)."""
        y: mx.array = self.base_class.__call__(self, x)
        site = self.lora
        choice = site.rows.choice
        if choice is None or (joined := choice.active.joined(site.path, site.parts)) is None:
            return y
        return mx.addmm(y, choice.scaled(x @ joined.a, joined.columns), joined.b)


class _Embedding(_Adapted):
    def __call__(self, tokens: mx.array) -> mx.array:
        """(B, L) → (B, L, out)."""
        y: mx.array = self.base_class.__call__(self, tokens)
        site = self.lora
        choice = site.rows.choice
        if choice is None or (joined := choice.active.joined(site.path, site.parts)) is None:
            return y
        return mx.addmm(y, choice.scaled(joined.a[tokens], joined.columns), joined.b)

    def as_linear(self, x: mx.array) -> mx.array:
        """(B, ..., out) → (B, ..., in), the vocabulary."""
        y: mx.array = self.base_class.as_linear(self, x)
        site = self.lora
        choice = site.rows.choice
        if choice is None or (joined := choice.active.joined(site.path, site.parts, in_head=True)) is None:
            return y
        return mx.addmm(y, choice.scaled(x @ joined.b.T, joined.columns), joined.a.T)


class _Experts(_Adapted):
    """Its input may be sorted by expert; ``_ExpertBlock`` sees to it that all rows are alike by then."""

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        y: mx.array = self.base_class.__call__(self, x, indices, sorted_indices=sorted_indices)
        site = self.lora
        choice = site.rows.choice
        if choice is None:
            return y
        assert choice.is_uniform, "an expert layer was called outside its block"
        for digest, scale in choice.rows[0]:
            if (part := site.parts.get(digest)) is not None:
                z = x
                for factor in (part.a, part.b):
                    z = mx.gather_mm(z, factor, rhs_indices=indices, sorted_indices=sorted_indices)
                y = y + z * (scale * part.scale)
        return y


class _ExpertBlock(_Adapted):
    """Rows with the same adapters go through the experts together, each such group by itself.

    A token reads its own experts' weights only, so that little is read twice.
    """

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """(B, ..., in), (B, ..., k) → (B, ..., k, out)."""
        rows = self.lora.rows
        choice = rows.choice
        if choice is None or choice.is_uniform:
            whole: mx.array = self.base_class.__call__(self, x, indices)
            return whole
        groups = choice.groups(x.shape[0])
        parts = []
        for row, at in groups:
            with rows.only(row):
                parts.append(self.base_class.__call__(self, x[at], indices[at]))
        back = mx.argsort(mx.concatenate([at for _, at in groups]))
        return mx.concatenate(parts)[back]


_PRODUCTS: dict[str, type] = {"linear": _Linear, "embedding": _Embedding, "experts": _Experts}
