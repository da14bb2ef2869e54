"""The one door to a model: where it comes from → weights, tokenizer and facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxserver.models.device import WeightPolicy
from mlxserver.models.errors import ModelError
from mlxserver.models.model import Model
from mlxserver.models.rope_options import FROM_MODEL, RopeOptions


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``path`` is a GGUF file or an MLX folder; else ``hf_repo`` is ``USER/REPO`` or ``USER/REPO:QUANT``."""

    path: str = ""
    hf_repo: str = ""
    hf_file: str = ""
    hf_token: str = ""
    offline: bool = False
    hf_cache: str = ""
    """The cache's folder (LLAMA_CACHE); empty for the one huggingface_hub would take."""

    @property
    def name(self) -> str:
        return self.path or self.hf_repo


def load_model(
    source: ModelSource,
    dtype: str = "auto",
    weights: WeightPolicy = "auto",
    override_kv: Sequence[str] = (),
    rope: RopeOptions = FROM_MODEL,
) -> tuple[Model, list[str]]:
    """Loads a model in the calling thread, which is to be the one that runs it; all weights are evaluated.

    ``dtype``: ``auto``, ``float32``, ``float16`` or ``bfloat16``. ``weights``: do quantised ones stay so.
    Returns the model and lines worth a log entry. Raises ModelError with a one-line message.
    """
    path = local_path(source)
    if path.is_dir():
        from mlxserver.models.folder import load_folder

        if override_kv:
            raise ModelError("--override-kv applies to GGUF files only")
        return load_folder(path, source.name, dtype, weights, rope)
    from mlxserver.models.gguf.load import load_gguf

    return load_gguf(path, source.name, dtype, weights, override_kv, rope)


def local_path(source: ModelSource) -> Path:
    """The file or folder to load, fetched from the hub if need be."""
    if source.path:
        return Path(source.path)
    if not source.hf_repo:
        raise ModelError("no model was named (-m or -hf)")
    from mlxserver.models.hub import fetch

    return fetch(source.hf_repo, source.hf_file, source.hf_token, source.offline, source.hf_cache)
