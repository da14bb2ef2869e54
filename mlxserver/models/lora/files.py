"""The files of an adapter, read whole: one that is cut off while it is mapped would end the process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import safetensors

from mlxserver.models.lora.adapter import AdapterError
from mlxserver.models.lora.pairs import Factor

MAX_SETTINGS = 1 << 20
"""Bytes of an adapter_config.json."""
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_file(path: Path, limit: int) -> bytes:
    """Raises AdapterError for anything but a file of at most ``limit`` bytes."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise AdapterError(f"{path.name}: {'not a file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise AdapterError(
            f"{path.name}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if len(content) > limit:
        raise AdapterError(f"{path.name}: more than {limit} bytes, which is more than the model explains")
    return content


def read_settings(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    content = read_file(path, MAX_SETTINGS)
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{path.name}: no JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise AdapterError(f"{path.name}: not a JSON object")
    return value


def read_tensors(path: Path, limit: int) -> dict[str, Factor]:
    """The tensors of a safetensors file by their names."""
    content = read_file(path, limit)
    try:
        entries = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise AdapterError(
            f"{path.name}: damaged or incomplete: {' '.join(str(error).split())[:200]}"
        ) from error
    return {name: _factor(name, entry) for name, entry in entries}


def _factor(name: str, entry: dict[str, Any]) -> Factor:
    kind, shape = entry["dtype"], tuple(entry["shape"])
    if kind not in _TYPES:
        raise AdapterError(f"LoRA tensor '{name[:200]}' is of the type {kind}")
    return Factor(shape, _reader(kind, shape, entry["data"]))


def _reader(kind: str, shape: tuple[int, ...], data: bytearray) -> Callable[[], mx.array]:
    def read() -> mx.array:
        array = mx.array(np.frombuffer(data, _TYPES[kind]).reshape(shape))
        return array.view(mx.bfloat16) if kind == "BF16" else array

    return read
