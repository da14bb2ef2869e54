"""The one door to an adapter: a GGUF file or a folder → its parts, checked against a model."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from mlxserver.models.errors import ModelError
from mlxserver.models.gguf.reader import parse_part
from mlxserver.models.lora import gguf_file
from mlxserver.models.lora.adapter import Adapter, AdapterError, digest_of
from mlxserver.models.lora.pairs import fit
from mlxserver.models.lora.targets import find_targets
from mlxserver.models.model import Model


def load_adapter(path: str, model: Model) -> Adapter:
    """Reads the adapter for the module of ``model``, in the calling thread; the model is not changed.

    Raises AdapterError with one line that names the path.
    """
    try:
        return _load(path, model)
    except ModelError as error:
        message = str(error)
        raise AdapterError(message if path in message else f"{path}: {message}") from error


def _load(path: str, model: Model) -> Adapter:
    targets = find_targets(model.module)
    part = parse_part(_content(Path(path)), Path(path))
    keys = gguf_file.read_keys(part.metadata)
    pairs, notes = gguf_file.read_pairs(part, keys, model, targets)
    parts = fit(pairs, targets)
    _check_tokens(keys.invocation, model)
    return Adapter(
        path=path,
        digest=digest_of(parts, keys.invocation),
        parts=MappingProxyType(parts),
        task_name=keys.task_name,
        prompt_prefix=keys.prompt_prefix,
        invocation=keys.invocation,
        notes=tuple(notes),
    )


def _content(path: Path) -> bytes:
    """Read whole: a file that is cut off while it is mapped would end the process."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise AdapterError("no such file" if not path.exists() else "not a file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise AdapterError(f"cannot be read: {error}") from error


def _check_tokens(tokens: tuple[int, ...], model: Model) -> None:
    for token in tokens:
        if not 0 <= token < model.info.n_vocab:
            raise AdapterError(f"the invocation token {token} is not in the vocabulary")
