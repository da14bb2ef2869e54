from __future__ import annotations

import gguf.quants
import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.gguf.blocks import GROUP, REPACKABLE, Packed, repack, repack_mxfp4

ROWS, COLUMNS = 7, 512
WITH_MINIMUM = {Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K}


def random_rows(kind: Type) -> np.ndarray:
    """Random codes under sane scales."""
    random = np.random.default_rng(int(kind))
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rows = random.integers(0, 256, (ROWS, COLUMNS // block * block_bytes), np.uint8)
    blocks = rows.reshape(-1, block_bytes)
    if kind == Type.MXFP4:
        blocks[:, 0] = random.integers(100, 150, len(blocks))
    for at in range(0, 0 if kind == Type.MXFP4 else 4 if kind in WITH_MINIMUM else 2, 2):
        blocks[:, at : at + 2] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    return rows


def dequantized(packed: Packed) -> np.ndarray:
    biases = None if packed.biases is None else mx.array(packed.biases)
    values = mx.dequantize(
        mx.array(packed.weight),
        mx.array(packed.scales),
        biases,
        group_size=GROUP,
        bits=packed.bits,
        mode=packed.mode,
    )
    return np.array(values.astype(mx.float32))


@pytest.mark.parametrize("kind", sorted(REPACKABLE))
def test_repacked_values_are_the_same_bit_for_bit(kind: Type) -> None:
    rows = random_rows(kind)
    assert np.array_equal(dequantized(repack(rows, kind)), gguf.quants.dequantize(rows, kind))


def test_repacked_mxfp4_values_are_the_same_bit_for_bit() -> None:
    rows = random_rows(Type.MXFP4)
    assert np.array_equal(dequantized(repack_mxfp4(rows)), gguf.quants.dequantize(rows, Type.MXFP4))


def test_rows_stay_apart() -> None:
    """What undoes a permutation of rows relies on it."""
    rows = random_rows(Type.Q5_K)
    order = np.random.default_rng(0).permutation(ROWS)
    whole, ordered = repack(rows, Type.Q5_K), repack(rows[order], Type.Q5_K)
    assert np.array_equal(whole.weight[order], ordered.weight)
    assert whole.biases is not None and ordered.biases is not None
    assert np.array_equal(whole.biases[order], ordered.biases)
