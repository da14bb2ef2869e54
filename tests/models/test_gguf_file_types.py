from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.gguf.file_types import file_type
from mlxserver.models.gguf.reader import Tensor

NAMES = {
    0: "all F32",
    1: "F16",
    3: "Q4_1",
    7: "Q8_0",
    10: "Q2_K - Medium",
    11: "Q3_K - Small",
    15: "Q4_K - Medium",
    18: "Q6_K",
    21: "Q2_K - Small",
    25: "IQ4_NL - 4.5 bpw",
    27: "IQ3_S mix - 3.66 bpw",
    32: "BF16",
    38: "MXFP4 MoE",
    999: "unknown, may not work",
}


@pytest.mark.parametrize("code", NAMES)
def test_names_of_codes(code: int) -> None:
    assert file_type({"general.file_type": code}, {}) == NAMES[code]


@pytest.mark.parametrize(
    ("kind", "name"), [(Type.F32, "all F32"), (Type.Q4_K, "Q4_K - Medium"), (Type.IQ4_NL, "IQ4_NL - 4.5 bpw")]
)
def test_guesses(kind: Type, name: str) -> None:
    data = np.zeros((1, 1), np.uint8)
    tensors = {n: Tensor(n, (1, 1), t, data) for n, t in {"a": kind, "b": kind, "c": Type.F16}.items()}
    assert file_type({}, tensors) == f"(guessed) {name}"
