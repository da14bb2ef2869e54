"""All parts of a GGUF model: a single file, or the files of a split one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.metadata import Hyperparameters
from mlxserver.models.gguf.reader import Tensor, read_part

_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelFile:
    path: Path
    metadata: dict[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError(f"{self.path}: the file does not name its architecture (general.architecture)")
        return name

    @property
    def hyperparameters(self) -> Hyperparameters:
        return Hyperparameters(self.architecture, self.metadata)


def open_model(path: Path) -> ModelFile:
    """Opens ``path`` and, where it is the first part of a split model, its other parts."""
    first = read_part(path)
    count = first.metadata.get("split.count", 0)
    tensors = dict(first.tensors)
    if isinstance(count, int) and count > 1:
        for part in _other_parts(path, first.metadata, count):
            _merge(tensors, read_part(part).tensors, part)
        _check_total(path, first.metadata, len(tensors))
    return ModelFile(path, first.metadata, tensors)


def split_name(prefix: str, number: int, count: int) -> str:
    """llama.cpp's name of part ``number`` (from 1) of a split model."""
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


def _other_parts(path: Path, metadata: Mapping[str, Any], count: int) -> list[Path]:
    if metadata.get("split.no") != 0:
        raise ModelError(f"{path}: part {metadata.get('split.no')} of a split model; name the first part")
    name = _SPLIT_NAME.fullmatch(path.name)
    if not name or int(name[3]) != count:
        raise ModelError(f"{path}: the first of {count} parts must be named {split_name('NAME', 1, count)}")
    return [path.with_name(split_name(name[1], number, count)) for number in range(2, count + 1)]


def _merge(tensors: dict[str, Tensor], more: Mapping[str, Tensor], part: Path) -> None:
    for name, tensor in more.items():
        if name in tensors:
            raise ModelError(f"{part}: the tensor {name!r} is in an earlier part too")
        tensors[name] = tensor


def _check_total(path: Path, metadata: Mapping[str, Any], found: int) -> None:
    wanted = metadata.get("split.tensors.count")
    if wanted != found:
        raise ModelError(f"{path}: the parts hold {found} tensors, the first one speaks of {wanted}")
