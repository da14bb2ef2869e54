"""What record_embeddings.py recorded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np

RECORD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "embeddings.json").read_text("utf-8")
)

Vector = np.ndarray[Any, np.dtype[np.float32]]


def decoded(texts: list[str]) -> Vector:
    """(vectors, n_embd)."""
    return np.stack([np.frombuffer(base64.b64decode(text), np.dtype("<f4")) for text in texts])


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
