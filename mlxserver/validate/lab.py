"""What is compared: a model, a text's tokens, where they are cut and what is removed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from mlxserver.engine.config import EngineConfig
from mlxserver.kv.kv_type import KVType
from mlxserver.models.model import Model
from mlxserver.validate.metrics import Array, Trace
from mlxserver.validate.rig import PathError, Rig

FEWEST = 64
"""Tokens that a text must have."""
N_SLOTS = 2
"""Of a path without batches."""
EPSILON = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
"""Largest difference of a moved key from a fresh one, of the largest key; a shift is two roundings."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which cold trace a path is held against: the base's KV types where ``kv_type`` is empty.

    A prompt chunk ends at ``cut`` (0: only where it is full).
    """

    kv_type: str = ""
    is_shortened: bool = False
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """``n_removed`` tokens go behind the first ``n_before``; the first ``known`` are evaluated before."""

    chunks: tuple[int, ...]
    cuts: tuple[int, ...]
    widths: tuple[int, ...]
    kv_types: tuple[str, ...]
    n_decode: int
    n_before: int
    n_removed: int
    known: int

    @classmethod
    def of(
        cls,
        n_tokens: int,
        chunks: Sequence[int],
        cuts: Sequence[int],
        widths: Sequence[int],
        kv_types: Sequence[str],
        n_decode: int,
    ) -> Plan:
        """``cuts`` beyond the text are left out; none are the default ones."""
        own = (1, n_tokens // 4, n_tokens // 2, 3 * n_tokens // 4, n_tokens - 8)
        return cls(
            chunks=tuple(dict.fromkeys(chunks)),
            cuts=tuple(sorted({cut for cut in cuts or own if 0 < cut < n_tokens})),
            widths=tuple(dict.fromkeys(widths)),
            kv_types=tuple(dict.fromkeys(kv_types)),
            n_decode=min(n_decode, n_tokens // 2),
            n_before=n_tokens // 16,
            n_removed=n_tokens // 8,
            known=3 * n_tokens // 4,
        )


class Lab:
    """``config`` has the sizes, KV types and sliding windows of the server that is imitated.

    Raises ModelError where the model cannot be served so.
    """

    def __init__(self, model: Model, config: EngineConfig, tokens: Sequence[int], plan: Plan) -> None:
        self._model = model
        self._config = config
        self.tokens = list(tokens)
        self.plan = plan
        self.shortened = self.tokens[: plan.n_before] + self.tokens[plan.n_before + plan.n_removed :]
        self.dtype: mx.Dtype = model.module(mx.array([[0]])).dtype
        """What the model computes in."""
        self.note = ""
        """What a path has to say beyond its rows."""
        types = self.rig().types
        self.is_quantised = any(kind.bits for kind in types)
        """The base's KV types are."""
        self._epsilon = max(EPSILON.get(self.dtype, 1e-5), *map(_epsilon, types))
        self._cold: tuple[Target | None, Trace | None] = (None, None)
        self._fresh: tuple[Array, Array] | None = None

    def rig(self, kv_type: str = "", cache_ram: int = -1, n_slots: int = 0) -> Rig:
        """Empty slots. ``kv_type`` holds keys and values; the base's types where it is empty."""
        config = replace(self._config, cache_ram=cache_ram, n_slots=n_slots or N_SLOTS)
        if kv_type:
            config = replace(config, cache_type_k=kv_type, cache_type_v=kv_type)
        return Rig(self._model, config)

    def cold(self, target: Target) -> Trace:
        """The trace of a single run in the server's chunks. Only the last one asked for is kept."""
        if self._cold[0] != target:
            self._cold = (None, None)
            rig = self.rig(target.kv_type)
            tokens = self.shortened if target.is_shortened else self.tokens
            parts = (tokens[: target.cut], tokens[target.cut :])
            logits = [rows.logits for part in parts for rows in rig.read(rig.slots[0], part)]
            self._cold = (target, Trace(tokens, np.concatenate(logits)))
        found = self._cold[1]
        assert found is not None
        return found

    def other(self, seed: int, n: int) -> list[int]:
        """Tokens of this text, but not this text."""
        return [self.tokens[(7 * seed - 3 * i) % len(self.tokens)] for i in range(n)]

    def check_first_layer(self, rig: Rig, slot: int) -> None:
        """Moved keys are to be those that would have been computed where they now are.

        Only the first layer's keys and values depend on nothing but token and position. Raises PathError.
        """
        n = rig.states.length(slot)
        moved, fresh = rig.first_layer(slot), self._first_layer()
        error = max(_relative(a, b[:, :, :n]) for a, b in zip(moved, fresh, strict=True))
        self.note = f"moved keys off by {error:.1e}"
        if not error <= self._epsilon:
            raise PathError(f"{self.note}: more than {self._epsilon:.1e}")

    def _first_layer(self) -> tuple[Array, Array]:
        """Of a cold run over the shortened text."""
        if self._fresh is None:
            rig = self.rig()
            rig.fill(rig.slots[0], self.shortened)
            self._fresh = rig.first_layer(0)
        return self._fresh


def _relative(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30))


def _epsilon(kind: KVType) -> float:
    """A step is at most twice the largest number over 2^bits - 1. The fresh key is off by half a step, the
    moved one by another half, and by what a rotation makes of the first half: at most half the root of 2."""
    return EPSILON[kind.dtype] if kind.bits is None else 3.5 / (2**kind.bits - 1)
