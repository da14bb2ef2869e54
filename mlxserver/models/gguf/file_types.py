"""llama.cpp's names of a file's predominant tensor type (``llama_ftype_name``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gguf.constants import GGMLQuantizationType as Type
from gguf.constants import LlamaFileType

from mlxserver.models.gguf.reader import Tensor

_BITS_PER_WEIGHT = {
    "IQ2_XXS": "2.0625",
    "IQ2_XS": "2.3125",
    "IQ2_S": "2.5",
    "IQ2_M": "2.7",
    "IQ3_XS": "3.3",
    "IQ3_XXS": "3.0625",
    "IQ1_S": "1.5625",
    "IQ1_M": "1.75",
    "IQ4_NL": "4.5",
    "IQ4_XS": "4.25",
    "IQ3_S": "3.4375",
}
_OTHERS = {
    "ALL_F32": "all F32",
    "MXFP4_MOE": "MXFP4 MoE",
    "Q2_K": "Q2_K - Medium",
    "TQ1_0": "TQ1_0 - 1.69 bpw ternary",
    "TQ2_0": "TQ2_0 - 2.06 bpw ternary",
    "IQ3_M": "IQ3_S mix - 3.66 bpw",
}
_SIZES = {"S": "Small", "M": "Medium", "L": "Large"}
_OF_TENSOR_TYPE = {Type.Q3_K: "Q3_K_M", Type.Q4_K: "Q4_K_M", Type.Q5_K: "Q5_K_M", Type.F32: "ALL_F32"}


def file_type(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The name of ``general.file_type``, or a guess by the most frequent tensor type."""
    code = metadata.get("general.file_type")
    if isinstance(code, int):
        return _by_code(code)
    frequent = Counter(tensor.type for tensor in tensors.values()).most_common(1)[0][0]
    return "(guessed) " + _name(_OF_TENSOR_TYPE.get(frequent, frequent.name))


def _by_code(code: int) -> str:
    try:
        return _name(LlamaFileType(code).name.removeprefix("MOSTLY_"))
    except ValueError:
        return "unknown, may not work"


def _name(kind: str) -> str:
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind in _BITS_PER_WEIGHT:
        return f"{kind} - {_BITS_PER_WEIGHT[kind]} bpw"
    stem, _, size = kind.rpartition("_")
    return f"{stem} - {_SIZES[size]}" if size in _SIZES else kind
