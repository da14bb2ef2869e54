"""A GGUF file's metadata with types and ranges checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxserver.models.errors import ModelError

MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The keys of one architecture, asked for without its prefix: ``block_count``, ``rope.freq_base``."""

    architecture: str
    metadata: Mapping[str, Any]

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to 2**31 - 1. A list of equal numbers, one a layer, counts as that number."""
        value = self.get(key)
        if isinstance(value, list) and value:
            value = self._same(key, value)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or not 0 < value <= MAX_COUNT:
            raise self._bad(key, value, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, float | int) or not abs(value) < float("inf"):
            raise self._bad(key, value, "a number")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._bad(key, value, "a text")
        return value

    def _same(self, key: str, values: Sequence[Any]) -> Any:
        if any(value != values[0] for value in values):
            raise ModelError(f"{self.architecture}.{key} differs from layer to layer, which is not supported")
        return values[0]

    def _bad(self, key: str, value: Any, wanted: str) -> ModelError:
        name = f"{self.architecture}.{key}"
        if value is None:
            return ModelError(f"the GGUF file has no key {name}")
        return ModelError(f"the GGUF key {name} is {str(value)[:40]!r}, not {wanted}")
