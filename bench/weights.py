"""The models that are played, made once from SmolLM2's GGUF file and kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.contestants import Weights, python

MODELS = {"smollm2": "float32", "tiny": "tiny"}
"""Name -> how ``bench.gguf_files`` makes it."""


def prepared(name: str, source: Path, folder: Path) -> Weights:
    """In processes of their own, so that the one that measures holds no model."""
    weights = Weights(folder / f"{name}-f32.gguf", folder / f"{name}-f32")
    if not weights.gguf.exists():
        make = python("bench.gguf_files", MODELS[name], str(source), str(weights.gguf))
        subprocess.run(make, check=True)
    subprocess.run(python("bench.convert", str(weights.gguf), str(weights.folder)), check=True)
    return weights
