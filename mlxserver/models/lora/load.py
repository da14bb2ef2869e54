"""The one door to an adapter: a GGUF file or a folder → its parts, checked against a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.reader import parse_part
from mlxserver.models.lora import gguf_file, mlx_folder, peft_folder
from mlxserver.models.lora.adapter import Adapter, AdapterError, digest_of
from mlxserver.models.lora.files import read_file, read_settings, read_tensors
from mlxserver.models.lora.pairs import Pair, fit
from mlxserver.models.lora.targets import Target, find_targets
from mlxserver.models.model import Model

BYTES_A_PARAMETER = 16
"""Of the model: more than any adapter for it has, with 32-bit floats and ranks as large as its layers."""
SMALL = 1 << 26

PICKLE = "adapter_model.bin"


@dataclass(frozen=True, slots=True)
class _Read:
    pairs: list[Pair]
    task_name: str = ""
    prompt_prefix: str = ""
    invocation: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def load_adapter(path: str, model: Model) -> Adapter:
    """Reads the adapter for the module of ``model``, in the calling thread; the model is not changed.

    Raises AdapterError with one line that names the path.
    """
    try:
        return _load(path, model)
    except (ModelError, OSError, MemoryError, RuntimeError) as error:  # mlx's of memory is a RuntimeError
        message = " ".join(str(error).split())[:500] or type(error).__name__
        raise AdapterError(message if message.startswith(path) else f"{path}: {message}") from error


def _load(path: str, model: Model) -> Adapter:
    targets = find_targets(model.module)
    limit = SMALL + BYTES_A_PARAMETER * model.info.n_params
    where = Path(path)
    read = _folder(where, targets, limit) if where.is_dir() else _gguf(where, model, targets, limit)
    for token in read.invocation:
        if not 0 <= token < model.info.n_vocab:
            raise AdapterError(f"the invocation token {token} is not in the vocabulary")
    parts = fit(read.pairs, targets)
    return Adapter(
        path=path,
        digest=digest_of(parts, read.invocation),
        parts=MappingProxyType(parts),
        task_name=read.task_name,
        prompt_prefix=read.prompt_prefix,
        invocation=read.invocation,
        notes=read.notes,
    )


def _gguf(path: Path, model: Model, targets: Mapping[str, Target], limit: int) -> _Read:
    part = parse_part(read_file(path, limit), path)
    keys = gguf_file.read_keys(part.metadata)
    pairs, notes = gguf_file.read_pairs(part, keys, model, targets)
    return _Read(pairs, keys.task_name, keys.prompt_prefix, keys.invocation, tuple(notes))


def _folder(path: Path, targets: Mapping[str, Target], limit: int) -> _Read:
    settings = read_settings(path / "adapter_config.json")
    if "peft_type" in settings:
        if not (path / peft_folder.WEIGHTS).exists() and (path / PICKLE).exists():
            raise AdapterError(f"{PICKLE} is not read, only {peft_folder.WEIGHTS}: a pickle may run code")
        tensors = read_tensors(path / peft_folder.WEIGHTS, limit)
        pairs = peft_folder.read_pairs(settings, tensors, targets)
        return _Read(pairs, invocation=peft_folder.invocation(settings))
    return _Read(mlx_folder.read_pairs(settings, read_tensors(path / mlx_folder.WEIGHTS, limit), targets))
