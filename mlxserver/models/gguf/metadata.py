"""A GGUF file's metadata with types and ranges checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def apply_overrides(metadata: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Applies ``--override-kv`` entries ``KEY=TYPE:VALUE`` to ``metadata``.

    Returns a line for every entry that does not fit the type in the file, which is left out as in llama.cpp.
    Raises ModelError for a malformed entry.
    """
    notes = []
    for entry in overrides:
        key, value = _parse_override(entry)
        known = metadata.get(key)
        if known is not None and _kind(known) != _kind(value):
            notes.append(f"override of {key} ignored: it is {_kind(known)} in the file, not {_kind(value)}")
        else:
            metadata[key] = value
    return notes


def _parse_override(entry: str) -> tuple[str, Any]:
    key, equals, typed = entry.partition("=")
    kind, colon, text = typed.partition(":")
    parse = _PARSERS.get(kind)
    if not (equals and colon and parse and len(key) < 128 and len(text) < 128):
        raise ModelError(f"malformed KV override {entry!r}: KEY=int|float|bool|str:VALUE is wanted")
    try:
        return key, parse(text)
    except ValueError as error:
        raise ModelError(f"malformed KV override {entry!r}: {text!r} is no {kind}") from error


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": _parse_bool, "str": str}


def _kind(value: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(value, kind):
            return name
    return "an array"
