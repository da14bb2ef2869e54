"""How a model's cached keys depend on their position, found by watching it evaluate a few tokens.

Every rotary embedding of mlx and mlx-lm ends in ``mx.fast.rope``. The call whose result is what a layer
gives to its cache is that layer's rotation; a layer that caches something else cannot be moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

PROBE = 4
"""Tokens that are evaluated to watch a model."""
ELSEWHERE = 37
"""Another first position, at which the same tokens must give the same keys but for their rotation."""
FAR = 4
"""Multiples of the trained context at which the rotation must still be the same one."""
TOLERANCE = {mx.float32: 1e-3, mx.float16: 5e-2, mx.bfloat16: 1e-1}
"""Largest relative difference (root mean square) that rounding alone explains, of what a layer caches."""
GROWTH = 4
"""How many times larger than in any layer before it rounding may be in a layer."""


class CannotShift(Exception):
    """One line that names the class and the operation that it lacks."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The arguments of ``mx.fast.rope``; ``freqs`` (dims / 2,) takes the place of ``base``."""

    dims: int
    traditional: bool
    base: float | None
    scale: float
    freqs: mx.array | None
    of_values: bool = False
    """The rotated part is what the layer caches as values (multi-head latent attention)."""

    def moved(self, x: mx.array, start: int, to: int) -> mx.array:
        """``x`` (1, heads, n, head_dim) of the positions from ``start`` on as it is at those from ``to`` on.

        Turned back by the very angles that ``mx.fast.rope`` turned it by, and forth by the new ones: the
        rounding of an angle, which grows with the position, cancels. In 32-bit floats.
        """
        n = x.shape[2]
        columns = x.astype(mx.float32).transpose(2, 1, 0, 3)
        old = mx.arange(start, start + n, dtype=mx.int32)
        columns = self._turned(self._turned(columns, -old), old + (to - start))
        return columns.transpose(2, 1, 0, 3).astype(x.dtype)

    def _turned(self, columns: mx.array, positions: mx.array) -> mx.array:
        """``columns`` (n, heads, 1, head_dim), each at its own one of ``positions`` (n,)."""
        return mx.fast.rope(
            columns,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            scale=self.scale,
            offset=positions,
            freqs=self.freqs,
        )

    def agrees(self, other: Rotation) -> bool:
        """Whether both turn alike."""
        mine, its = self.freqs, other.freqs
        same = (self.dims, self.traditional, self.base, self.scale, self.of_values)
        if same != (other.dims, other.traditional, other.base, other.scale, other.of_values):
            return False
        return mine is its or (
            mine is not None and its is not None and bool(mx.array_equal(mine, its).item())
        )


def find_rotations(module: Any, n_ctx_train: int) -> list[Rotation | None]:
    """Each layer's rotation, in the order of its caches; None for a layer that knows no positions.

    The caches of all layers must be plain. Raises CannotShift where keys at one position do not follow
    from those at another.
    """
    if _has_sections(module):
        raise CannotShift("M-RoPE positions have several parts: keys cannot be re-rotated by one difference")
    here = watch(module, 0, PROBE)
    name = type(module).__module__.rpartition(".")[2]
    if not any(layer.rotation for layer in here):  # a table of positions would be read beyond its end
        raise CannotShift(f"{name}: no rotary position embedding was found, keys cannot be re-rotated")
    there = watch(module, ELSEWHERE, PROBE)
    far = watch(module, FAR * max(n_ctx_train, ELSEWHERE), 1)
    rotations = [
        _the_one(layer.rotation, others, name) for layer, *others in zip(here, there, far, strict=True)
    ]
    rounding = 0.0
    for index, (rotation, a, b) in enumerate(zip(rotations, here, there, strict=True)):
        unexplained, tolerance = _unexplained(rotation, a, b)
        if not unexplained <= max(tolerance, GROWTH * rounding):
            raise CannotShift(f"{name}: keys of layer {index} depend on their position beyond a rotation")
        rounding = max(rounding, unexplained)
    return rotations


@dataclass(slots=True)
class Watched:
    """What a layer gave to its cache, and how it was rotated; as the layer's cache it keeps nothing."""

    offset: int
    keys: mx.array | None = None
    values: mx.array | None = None
    rotation: Rotation | None = None
    calls: dict[int, tuple[mx.array, Rotation]] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        assert self.calls is not None
        self.keys, self.values = keys, values
        if id(keys) in self.calls:
            self.rotation = self.calls[id(keys)][1]
        elif id(values) in self.calls:
            rotation = self.calls[id(values)][1]
            self.rotation = Rotation(
                rotation.dims,
                rotation.traditional,
                rotation.base,
                rotation.scale,
                rotation.freqs,
                of_values=True,
            )
        return keys, values

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        from mlx_lm.models.cache import create_attention_mask

        return create_attention_mask(N, 0, return_array, window_size)


def watch(module: Any, start: int, n: int) -> list[Watched]:
    """What the layers cached of ``n`` tokens at the positions from ``start`` on."""
    from mlx_lm.models.cache import make_prompt_cache

    calls: dict[int, tuple[mx.array, Rotation]] = {}
    layers = [Watched(start, calls=calls) for _ in make_prompt_cache(module)]
    with _rope_calls(calls):
        logits = module(mx.arange(1, n + 1)[None], cache=layers)
    mx.eval(logits, [array for layer in layers for array in (layer.keys, layer.values) if array is not None])
    return layers


@contextmanager
def _rope_calls(calls: dict[int, tuple[mx.array, Rotation]]) -> Iterator[None]:
    """Notes the result of every ``mx.fast.rope``; the results are kept, so that an id names one array."""
    rope: Callable[..., mx.array] = mx.fast.rope

    def noting(x: mx.array, dims: int, **how: Any) -> mx.array:
        result = rope(x, dims, **how)
        rotation = Rotation(dims, how["traditional"], how["base"], how["scale"], how.get("freqs"))
        calls[id(result)] = (result, rotation)
        return result

    mx.fast.rope = noting  # type: ignore[assignment]
    try:
        yield
    finally:
        mx.fast.rope = rope


def _the_one(rotation: Rotation | None, others: Sequence[Watched], name: str) -> Rotation | None:
    for other in others:
        same = rotation is None if other.rotation is None else rotation and rotation.agrees(other.rotation)
        if not same:
            raise CannotShift(f"{name}: the rotation depends on the length, keys cannot be re-rotated")
    return rotation


def _unexplained(rotation: Rotation | None, here: Watched, there: Watched) -> tuple[float, float]:
    """The relative difference of the two positions that is not the rotation's, and what rounding may be."""
    if here.keys is None or here.values is None or there.keys is None or there.values is None:
        return math.inf, 0.0
    keys, values = there.keys, there.values
    if rotation is not None and rotation.of_values:
        values = rotation.moved(values, ELSEWHERE, 0)
    elif rotation is not None:
        keys = rotation.moved(keys, ELSEWHERE, 0)
    differences = _relative(keys, here.keys), _relative(values, here.values)
    return max(differences), TOLERANCE.get(here.keys.dtype, 1e-1)


def _relative(a: mx.array, b: mx.array) -> float:
    difference = mx.linalg.norm((a.astype(mx.float32) - b.astype(mx.float32)).flatten())
    size = mx.linalg.norm(b.astype(mx.float32).flatten())
    relative: float = (difference / mx.maximum(size, 1e-30)).item()  # type: ignore[assignment]
    return relative


def _has_sections(module: Any) -> bool:
    """Whether positions are made of several parts (M-RoPE)."""
    args = getattr(module, "args", None)
    scaling = getattr(args, "rope_scaling", None) or getattr(args, "rope_parameters", None) or {}
    return isinstance(scaling, dict) and "mrope_section" in scaling
