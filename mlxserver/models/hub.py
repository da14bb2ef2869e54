"""Models of the Hugging Face hub, and of its cache on this machine.

Which GGUF file a repository stands for follows llama.cpp's ``common/download.cpp``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from mlxserver.models.errors import ModelError

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
FOLDER_FILES = (
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "additional_chat_templates/*.jinja",
    "model*.safetensors",
)
"""What is fetched of an MLX repository: no Python code."""

_NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


def fetch(repo: str, file: str = "", token: str = "", offline: bool = False, cache: str = "") -> Path:
    """The GGUF file (of a split model the first part) or the folder of ``USER/REPO[:QUANT]``.

    Shows huggingface_hub's progress bar; with ``offline`` only the cache is asked, as it is where the hub
    cannot be reached. An empty ``token`` or ``cache`` is looked for where huggingface_hub does.
    Raises ModelError with a one-line message.
    """
    repo_id, quant = split_repo(repo)
    reason = "--offline is set"
    if not offline:
        try:
            return _download(repo_id, quant, file, token, cache)
        except _Unreachable as error:
            reason = f"the hub cannot be reached: {error}"
    snapshot = _cached(repo_id, cache)
    if snapshot is None:
        raise ModelError(f"the repository {repo_id} is not in the cache, and {reason}")
    files = sorted(path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())
    wanted = choose(files, repo_id, quant, file)
    missing = [name for name in wanted if name not in files]
    if missing:
        raise ModelError(f"the repository {repo_id} has no {missing[0]} in the cache, and {reason}")
    return snapshot / wanted[0] if wanted else snapshot


def split_repo(repo: str) -> tuple[str, str]:
    repo_id, _, quant = repo.partition(":")
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ModelError(f"invalid repository {repo!r}: USER/REPO[:QUANT] is wanted")
    return repo_id, quant


def choose(files: Sequence[str], repo_id: str, quant: str, file: str) -> list[str]:
    """The GGUF files to load, the first part of a split model first; none for an MLX repository."""
    if file:
        if file not in files:
            raise ModelError(f"the repository {repo_id} has no file {file!r}{_listed(files)}")
        return _parts(file)
    best = _best(files, quant)
    if best:
        return _parts(best)
    if is_mlx(files) and not quant:
        return []
    kind = f"GGUF file of the kind {quant}" if quant else "model (GGUF, or config.json and safetensors)"
    raise ModelError(f"the repository {repo_id} has no {kind}{_listed(files)}")


def is_mlx(files: Sequence[str]) -> bool:
    return "config.json" in files and any(re.fullmatch(r"model[^/]*\.safetensors", name) for name in files)


def _best(files: Sequence[str], quant: str) -> str:
    """The first file whose name has the quantisation before a dot or dash; without one asked for, any."""
    models = [name for name in files if _is_model(name) and not _is_later_part(name)]
    for kind in (quant,) if quant else DEFAULT_QUANTS:
        pattern = re.compile(re.escape(kind) + "[.-]", re.IGNORECASE)
        for name in models:
            if pattern.search(name):
                return name
    return "" if quant or not models else models[0]


def _is_model(name: str) -> bool:
    return name.endswith(".gguf") and not any(word in PurePosixPath(name).name for word in _NO_MODELS)


def _is_later_part(name: str) -> bool:
    split = _SPLIT.fullmatch(name)
    return bool(split and int(split[3]) > 1 and int(split[2]) != 1)


def _parts(name: str) -> list[str]:
    split = _SPLIT.fullmatch(name)
    if not split or int(split[3]) == 1:
        return [name]
    return [f"{split[1]}-{number:05d}-of-{split[3]}.gguf" for number in range(1, int(split[3]) + 1)]


def _listed(files: Sequence[str]) -> str:
    models = [name for name in files if _is_model(name)]
    return f" (it has {', '.join(models[:10])})" if models else ""


class _Unreachable(Exception):
    pass


def _download(repo_id: str, quant: str, file: str, token: str, cache: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        wanted = choose(HfApi().list_repo_files(repo_id, token=token or None), repo_id, quant, file)
        patterns = wanted or list(FOLDER_FILES)
        folder = snapshot_download(
            repo_id, allow_patterns=patterns, token=token or None, cache_dir=cache or None
        )
    except (HFValidationError, HfHubHTTPError) as error:
        raise ModelError(f"cannot fetch {repo_id}: {_line(error)}") from error
    except ModelError:
        raise
    except Exception as error:
        # Its HTTP library, and so the class of a failed connection, differs between versions.
        raise _Unreachable(_line(error)) from error
    return Path(folder, wanted[0]) if wanted else Path(folder)


def _cached(repo_id: str, cache: str) -> Path | None:
    """The snapshot of the main branch, else any. huggingface_hub itself refuses one of only some files."""
    from huggingface_hub.constants import HF_HUB_CACHE

    root = Path(cache or HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
    main = root / "refs" / "main"
    if main.is_file():
        snapshot = root / "snapshots" / main.read_text("utf-8").strip()
        if snapshot.is_dir():
            return snapshot
    return next((path for path in sorted((root / "snapshots").glob("*")) if path.is_dir()), None)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
