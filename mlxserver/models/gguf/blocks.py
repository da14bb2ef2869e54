"""GGUF's quantised blocks as MLX's: the same integers, another order of bits.

MLX's affine format keeps a row of ``bits``-wide integers as one little-endian bit stream, and one scale and
bias for every group of values: ``value = scale * integer + bias``. Each type here maps onto it without a
change of value in 32-bit floats, since scale times integer is exact there and the bias is added last in both.
Block layouts: ggml's ``ggml-common.h``, as in ``gguf.quants``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Codes = tuple[Bytes, Floats, Floats]
"""The bit stream of each group, (groups, 4 * bits) bytes; scales (groups,); biases (groups,)."""

GROUP = 32
_LOW, _FOUR = np.uint8(0x0F), np.uint8(4)


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix in MLX's layout; ``biases`` is None in the mode ``mxfp4``."""

    weight: np.ndarray[Any, np.dtype[np.uint32]]
    """(rows, 32-bit words of a row)"""
    scales: np.ndarray[Any, Any]
    """(rows, groups of a row)"""
    biases: Floats | None
    bits: int
    mode: Literal["affine", "mxfp4"] = "affine"


def repack(rows: Bytes, kind: Type) -> Packed:
    """``rows`` is the tensor's data, (rows, bytes of a row), of a type in REPACKABLE."""
    blocks = rows.reshape(-1, GGML_QUANT_SIZES[kind][1])
    bits, convert = _AFFINE[kind]
    codes, scales, biases = convert(blocks)
    n_rows = len(rows)
    return Packed(_words(codes, n_rows), scales.reshape(n_rows, -1), biases.reshape(n_rows, -1), bits)


def repack_mxfp4(rows: Bytes) -> Packed:
    """MXFP4 is the same format in both but for the order of the 4-bit codes."""
    blocks = rows.reshape(-1, GGML_QUANT_SIZES[Type.MXFP4][1])
    words = _words(_pack4(blocks[:, 1:]), len(rows))
    return Packed(words, blocks[:, 0].reshape(len(rows), -1).copy(), None, 4, "mxfp4")


def _words(codes: Bytes, n_rows: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.ascontiguousarray(codes).reshape(n_rows, -1).view(np.uint32)


def _half(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)[:, 0].astype(np.float32)


def _pack4(nibbles: Bytes) -> Bytes:
    """(n, k) bytes whose low nibbles are the first k codes and whose high ones the next k → (n, k) packed."""
    even, odd = nibbles[:, 0::2], nibbles[:, 1::2]
    packed = np.empty(nibbles.shape, np.uint8)
    half = nibbles.shape[1] // 2
    packed[:, :half] = (even & 0x0F) | (odd << 4)
    packed[:, half:] = (even >> 4) | (odd & 0xF0)
    return packed


def _pack5(codes: Bytes) -> Bytes:
    """(n, 32) codes below 32 → (n, 20) bytes."""
    eights = codes.reshape(-1, 8).astype(np.uint64)
    shifts = np.arange(0, 40, 5, dtype=np.uint64)
    streams = np.bitwise_or.reduce(eights << shifts, axis=1)
    packed: Bytes = streams.view(np.uint8).reshape(-1, 8)[:, :5].reshape(len(codes), 20)
    return packed


def _nibbles(packed: Bytes) -> Bytes:
    return np.concatenate([packed & _LOW, packed >> _FOUR], axis=1)


def _q4_0(blocks: Bytes) -> Codes:
    scales = _half(blocks, 0)
    return _pack4(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: Bytes) -> Codes:
    return _pack4(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _five(blocks: Bytes, at: int) -> Bytes:
    """Q5_0 and Q5_1: 32 high bits, then 16 bytes of low nibbles."""
    high = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return _pack5(_nibbles(blocks[:, at + 4 :]) | (high << _FOUR))


def _q5_0(blocks: Bytes) -> Codes:
    scales = _half(blocks, 0)
    return _five(blocks, 2), scales, -16 * scales


def _q5_1(blocks: Bytes) -> Codes:
    return _five(blocks, 4), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Codes:
    scales = _half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(0x80), scales, -128 * scales


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and minima a super-block, in 12 bytes after the two halves."""
    low, middle, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)], axis=1)
    d, dmin = _half(blocks, 0)[:, None], _half(blocks, 2)[:, None]
    return (d * scales).ravel(), -(dmin * minima).ravel()


def _k_nibbles(packed: Bytes) -> Bytes:
    """Four times 32 bytes: the low nibbles are one group, the high ones the next."""
    return packed.reshape(-1, GROUP)


def _q4_k(blocks: Bytes) -> Codes:
    return _pack4(_k_nibbles(blocks[:, 16:])), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> Codes:
    high = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]
    low = _nibbles(_k_nibbles(blocks[:, 48:])).reshape(-1, 8, GROUP)
    codes = low | ((high & np.uint8(1)) << _FOUR)
    return _pack5(codes.reshape(-1, GROUP)), *_k_scales(blocks)


_AFFINE: dict[Type, tuple[int, Callable[[Bytes], Codes]]] = {
    Type.Q4_0: (4, _q4_0),
    Type.Q4_1: (4, _q4_1),
    Type.Q5_0: (5, _q5_0),
    Type.Q5_1: (5, _q5_1),
    Type.Q8_0: (8, _q8_0),
    Type.Q4_K: (4, _q4_k),
    Type.Q5_K: (5, _q5_k),
}

REPACKABLE = frozenset(_AFFINE)
"""The types that become MLX's affine format without a change of value."""
