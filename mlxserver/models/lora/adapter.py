"""An adapter as loaded: low-rank pairs by the path of the layer that they are added to."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxserver.models.errors import ModelError


class AdapterError(ModelError):
    """The adapter cannot be used; the message is one line, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What a layer gives more for an input x: ``scale * (x @ a) @ b``, times the scale of the request.

    ``a`` (in, rank) and ``b`` (rank, out) are in the layer's compute type; of an expert layer both have a
    leading axis of experts. Of an embedding ``in`` is the vocabulary. ``scale`` is alpha / rank or what the
    file's format has in its place.
    """

    a: mx.array
    b: mx.array
    scale: float
    in_head: bool = False
    """Of an embedding that is the output head too: whether the head has the product as well."""

    @property
    def rank(self) -> int:
        return self.a.shape[-1]


@dataclass(frozen=True, slots=True)
class Adapter:
    path: str
    """As given: a GGUF file or a folder."""
    digest: str
    """SHA-256, in hexadecimal digits, of everything that changes results; ``path`` does not."""
    parts: Mapping[str, LowRank]
    task_name: str = ""
    prompt_prefix: str = ""
    invocation: tuple[int, ...] = ()
    """Tokens from which on an activated LoRA acts; empty for an ordinary one, which always acts."""
    notes: tuple[str, ...] = ()
    """Lines worth a log entry."""

    @property
    def n_bytes(self) -> int:
        return sum(part.a.nbytes + part.b.nbytes for part in self.parts.values())


def digest_of(parts: Mapping[str, LowRank], invocation: Sequence[int]) -> str:
    """Equal for adapters that give equal results, whatever file they came from."""
    digest = hashlib.sha256(struct.pack(f"<{len(invocation) + 1}q", len(invocation), *invocation))
    for path in sorted(parts):
        part = parts[path]
        digest.update(f"\n{path} {part.in_head}".encode() + struct.pack("<d", part.scale))
        for factor in (part.a, part.b):
            digest.update(f"{factor.dtype}{factor.shape}".encode())
            digest.update(np.array(factor.view(mx.uint8), copy=False).data)
    return digest.hexdigest()
