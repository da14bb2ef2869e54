"""How a number of the KV cache is held: as a float, or quantised by MLX's affine quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

GROUP = 32
"""Numbers that share a scale and a bias; also the block size of llama.cpp's quantised KV types."""

Parts = tuple[mx.array, ...]
"""What holds (..., tokens, head_dim): arrays (..., tokens, a width of their own). One array, or packed
integers, scales and biases."""


@dataclass(frozen=True, slots=True)
class KVType:
    """A KV type of llama.cpp. A token's parts depend on that token alone, and so do the numbers read back."""

    name: str
    dtype: mx.Dtype
    """Of the numbers; of the scales and biases where they are quantised."""
    bits: int | None = None
    """A number's integer takes; None where the numbers are floats."""

    def encode(self, array: mx.array, finite: bool = False) -> Parts:
        """The parts that hold ``array``; its last axis must be a multiple of ``GROUP`` to be quantised.

        ``finite``: what is no finite number of this type is held as 0.
        """
        held = array.astype(self.dtype)
        if finite:
            held = mx.where(mx.abs(held) < mx.inf, held, 0)
        return (held,) if self.bits is None else tuple(mx.quantize(held, GROUP, self.bits))

    def decode(self, parts: Sequence[mx.array], dtype: mx.Dtype) -> mx.array:
        """What ``parts`` hold, as ``dtype``."""
        if self.bits is None:
            return parts[0].astype(dtype)
        packed, *affine = parts
        # bfloat16 has too few digits for a scale that is multiplied by up to 255
        work = mx.float32 if dtype == mx.float32 else self.dtype
        scales, biases = (part.astype(work) for part in affine)
        return mx.dequantize(packed, scales, biases, GROUP, self.bits).astype(dtype)

    def holds(self, parts: Sequence[mx.array]) -> bool:
        """Whether ``parts`` are of this type: their number, types and widths."""
        if self.bits is None:
            return [part.dtype for part in parts] == [self.dtype]
        if [part.dtype for part in parts] != [mx.uint32, self.dtype, self.dtype]:
            return False
        packed, scales, biases = (part.shape[-1] for part in parts)
        return scales == biases and packed * 32 == scales * GROUP * self.bits

    def fits(self, head_dim: int) -> bool:
        """Whether numbers of this width can be held."""
        return self.bits is None or head_dim % GROUP == 0

    def __str__(self) -> str:
        held = "plain numbers" if self.bits is None else f"MLX affine, {self.bits} bits, groups of {GROUP}"
        return f"KV type {self.name} is held as {held}"


KV_TYPES = {
    kind.name: kind
    for kind in (
        KVType("f32", mx.float32),
        KVType("f16", mx.float16),
        KVType("bf16", mx.bfloat16),
        KVType("q8_0", mx.float16, 8),
        KVType("q4_0", mx.float16, 4),
        KVType("q4_1", mx.float16, 4),
        KVType("q5_0", mx.float16, 5),
        KVType("q5_1", mx.float16, 5),
    )
}
"""By llama.cpp's names. iq4_nl has a codebook that is not affine."""
