"""What a model's weights will take, told by its files' headers before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gguf.constants import GGMLQuantizationType as Type

from mlxserver.models.device import DTYPES, WeightPolicy, keeps_quantized, on_metal
from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.model_file import open_model
from mlxserver.models.memory_limit import MIB, MemoryLimit

FLOATS = {Type.F32, Type.F16, Type.BF16}
MOST_EXPANSION = 16
"""Bytes of weights that a byte of a file may become: 2 bits a weight as 32-bit floats."""


def check_weights(
    path: Path, dtype: str, weights: WeightPolicy, limit: MemoryLimit, most: int | None
) -> str | None:
    """Raises ModelError for weights that cannot fit; a line of warning for those that may not.

    ``most``: bytes beyond which the system would end the process; None where that is not known.
    """
    size = weight_bytes(
        path, dtype, weights, worth_it=lambda n: limit.nbytes is not None and n > limit.nbytes
    )
    text = f"{path}: the weights take {size // MIB} MiB"
    if limit.is_given and limit.nbytes is not None and size > limit.nbytes:
        raise ModelError(f"{text}, --memory-limit is {limit.nbytes // MIB} MiB")
    if not limit.is_given and most is not None and size > most:
        raise ModelError(f"{text}, {most // MIB} MiB are free: a smaller model, or a quantised one, may fit")
    if limit.nbytes is not None and size > limit.nbytes:
        return f"{text}, the machine can spare {limit.nbytes // MIB} MiB: it may be slow, or fail"
    return None


def weight_bytes(
    path: Path, dtype: str, weights: WeightPolicy, worth_it: Callable[[int], bool] = lambda n: True
) -> int:
    """A lower bound. Headers are only read where ``worth_it`` says so of the most that the files may become.

    0 for what is no model; loading it says why.
    """
    if path.is_dir():
        return _of_folder(path, dtype)
    if not path.is_file():
        return 0
    try:
        parts = path.parent.glob(f"{path.name.partition('-00001-of-')[0]}-0*.gguf")
        most = MOST_EXPANSION * sum(each.stat().st_size for each in {path, *parts})
        return _of_gguf(path, dtype, weights) if worth_it(most) else 0
    except (ModelError, OSError):
        return 0


def _of_gguf(path: Path, dtype: str, weights: WeightPolicy) -> int:
    width, keeps = _width(dtype), keeps_quantized(weights)
    total = 0
    for tensor in open_model(path).tensors.values():
        stays = keeps and tensor.type not in FLOATS
        total += tensor.data.nbytes if stays else tensor.n_elements * width
    return total


def _of_folder(path: Path, dtype: str) -> int:
    """Files of floats with 16 bits become as wide as the compute type; others are counted as they are."""
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except (OSError, ValueError):
        return 0
    is_quantized = isinstance(config, dict) and ("quantization" in config or "quantization_config" in config)
    kind = config.get("torch_dtype", config.get("dtype")) if isinstance(config, dict) else None
    is_half = kind in ("float16", "bfloat16") and not is_quantized
    return size * _width(dtype) // 2 if is_half else size


def _width(dtype: str) -> int:
    """Bytes of a number of the compute type."""
    return 2 if dtype == "auto" and on_metal() else DTYPES[dtype].size if dtype in DTYPES else 4
