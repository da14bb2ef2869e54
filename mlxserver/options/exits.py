"""Options that answer at once, and how the process ends after them or after an error."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib import metadata

from mlxserver import __version__
from mlxserver.devices import list_devices
from mlxserver.options.table import COMPATIBLE_BUILD, Row

QUANT_TAG = re.compile(r"[-.]([A-Z0-9_]+)(?:-00001-of-\d+)?\.gguf$", re.IGNORECASE)


class Exit(Exception):
    """The process is to print these texts, unchanged, and end with ``code``."""

    def __init__(self, code: int, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stderr or stdout)
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


def version_text() -> str:
    """Two lines, the first with the build that mlxserver is compatible with."""
    mlx = metadata.version("mlx")
    return (
        f"version: {COMPATIBLE_BUILD} (mlxserver {__version__})\n"
        f"built with MLX {mlx} for {platform.system()} {platform.machine()}\n"
    )


def cached_models() -> list[str]:
    """``repo`` or ``repo:QUANT`` for every complete model in Hugging Face's cache."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found: set[str] = set()
    for repo in repos:
        names = {file.file_name for revision in repo.revisions for file in revision.files}
        if repo.repo_type == "model":
            found.update(models_in(repo.repo_id, names))
    return sorted(found)


def models_in(repo: str, names: set[str]) -> set[str]:
    """What a repository with these files offers: its GGUF quantisations, else the folder itself."""
    gguf = {name for name in names if name.endswith(".gguf") and not name.startswith("mmproj")}
    tags = {found[1].upper() for name in gguf if (found := QUANT_TAG.search(name))}
    if gguf:
        return {f"{repo}:{tag}" for tag in tags} or {repo}
    weights = any(name.endswith(".safetensors") for name in names)
    return {repo} if weights and "config.json" in names else set()


def cache_list_text() -> str:
    models = cached_models()
    lines = [f"{number:4d}. {model}\n" for number, model in enumerate(models, 1)]
    return f"number of models in cache: {len(models)}\n" + "".join(lines)


IMMEDIATE: dict[str, Callable[[], Exit]] = {
    "version": lambda: Exit(0, stderr=version_text()),
    "cache_list": lambda: Exit(0, stdout=cache_list_text()),
    "list_devices": lambda: Exit(0, stdout=list_devices()),
}


def exit_if_immediate(row: Row) -> None:
    """Raises ``Exit`` for an option that acts where it stands, whatever follows it."""
    if row.name in IMMEDIATE:
        raise IMMEDIATE[row.name]()
