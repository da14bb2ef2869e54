from __future__ import annotations

import gguf.quants
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.convert import unpack
from mlxserver.models.gguf.reader import Tensor

KINDS = [
    Type.Q2_K,
    Type.Q3_K,
    Type.Q4_K,
    Type.Q5_K,
    Type.Q6_K,
    Type.IQ4_NL,
    Type.IQ4_XS,
    Type.Q8_0,
    Type.TQ1_0,
]


def tensor(kind: Type, shape: tuple[int, int]) -> Tensor:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 120, (shape[0], shape[1] // block * block_bytes), np.uint8)
    return Tensor("t", shape, kind, data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 512), (2100, 256)])
def test_values_are_those_of_the_gguf_package(kind: Type, shape: tuple[int, int]) -> None:
    stored = tensor(kind, shape)
    expected = gguf.quants.dequantize(stored.data, kind)
    assert np.array_equal(unpack(stored, stored.data), expected, equal_nan=True)


def test_a_type_the_package_cannot_read_is_refused() -> None:
    stored = tensor(Type.I32, (2, 4))
    with pytest.raises(ModelError, match="'t' has the unsupported type I32"):
        unpack(stored, stored.data)
