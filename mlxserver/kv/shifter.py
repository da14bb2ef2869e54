"""Moves stored keys to other positions; nothing is evaluated for it.

The values, and the keys of every layer but the first, still carry what the tokens saw where they were
evaluated: the result is not what a cold evaluation gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import mlx.core as mx

from mlxserver.kv.kv_type import KVType, Parts
from mlxserver.kv.spans import KVSpan
from mlxserver.models.rotary import CannotShift, Rotation

HINTS = {
    "RotatingKVCache": "a sliding window overwrites keys that would have to move (--swa-full keeps them)",
    "ArraysCache": "recurrent state is one for all positions",
}
"""The operation that a cache class lacks."""


class Shifter:
    """``find`` gives the rotation of each plain layer, or raises CannotShift; asked when first needed.

    ``uncut`` names the cache classes of the layers that are not plain.
    """

    def __init__(
        self,
        find: Callable[[], list[Rotation | None]],
        uncut: Sequence[str],
        key_type: KVType,
        value_type: KVType,
    ) -> None:
        self._find = find
        self._uncut = uncut
        self._key_type = key_type
        self._value_type = value_type

    @property
    def reason(self) -> str:
        """Why nothing can be moved; empty where it can."""
        return self._found[1]

    def moved(self, span: KVSpan, start: int, to: int) -> KVSpan:
        """The state of tokens that were at the positions from ``start`` on, at those from ``to`` on.

        Raises CannotShift where ``reason`` says so.
        """
        if start == to:
            return span
        rotations, reason = self._found
        if reason:
            raise CannotShift(reason)
        pairs = zip(span.layers, rotations, strict=True)
        layers = tuple(self._layer(*layer, rotation, start, to) for layer, rotation in pairs)
        mx.eval(layers)
        return KVSpan(layers)

    def _layer(
        self, keys: Parts, values: Parts, rotation: Rotation | None, start: int, to: int
    ) -> tuple[Parts, Parts]:
        if rotation is None:
            return keys, values
        if rotation.of_values:
            return keys, _rotated(values, self._value_type, rotation, start, to)
        return _rotated(keys, self._key_type, rotation, start, to), values

    @cached_property
    def _found(self) -> tuple[list[Rotation | None], str]:
        if self._uncut:
            name = self._uncut[0]
            return [], f"{name} cannot shift: {HINTS.get(name, 'no operation moves its state')}"
        try:
            return self._find(), ""
        except CannotShift as error:
            return [], f"KVCache cannot shift: {error}"


def _rotated(parts: Parts, kind: KVType, rotation: Rotation, start: int, to: int) -> Parts:
    return kind.encode(rotation.moved(kind.decode(parts, mx.float32), start, to))
