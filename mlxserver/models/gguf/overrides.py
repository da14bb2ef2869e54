"""``--override-kv``: values in place of a GGUF file's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxserver.models.errors import ModelError

_FILE_ONLY = ("tokenizer.chat_template", "general.sampling.")
"""llama.cpp reads these past the overrides."""
_TEXTS = ("general.architecture", "general.name", "ggml.model", "ggml.pre", "rope.scaling.type")
_BOOLS = (
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "attention.causal",
    "rope.scaling.finetuned",
)
_FLOATS = (
    "_epsilon",
    "_scale",
    "_softcapping",
    "attention.scale",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
)
"""Ends of the keys that are no whole numbers, for files that have not got them."""


class OverriddenMetadata(dict[str, Any]):
    """A file's metadata with the overrides in their places, which knows those that were never asked for."""

    def __init__(self, metadata: Mapping[str, Any], overrides: Sequence[str]) -> None:
        """``overrides`` are ``KEY=TYPE:VALUE``; raises ModelError for a malformed one."""
        super().__init__(metadata)
        self._ignored: list[str] = []
        self._unread: dict[str, None] = {}
        for entry in overrides:
            self._override(*_parse(entry))

    def get(self, key: str, default: Any = None) -> Any:
        self._unread.pop(key, None)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self._unread.pop(key, None)
        return super().__getitem__(key)

    @property
    def notes(self) -> list[str]:
        """A line for every override without effect; complete once the model is loaded."""
        return self._ignored + [f"override of {key} has no effect: nothing reads it" for key in self._unread]

    def _override(self, key: str, value: Any) -> None:
        """As in llama.cpp the first override of a key counts, and one of a wrong type does not."""
        expected = _kind(super().__getitem__(key)) if key in self else _expected_kind(key)
        if key.startswith(_FILE_ONLY):
            self._ignored.append(f"override of {key} has no effect: it is read from the file only")
        elif expected != _kind(value):
            self._ignored.append(f"override of {key} ignored: it is {expected}, not {_kind(value)}")
        elif key in self._unread:
            self._ignored.append(f"override of {key} ignored: an earlier one counts")
        else:
            self[key] = value
            self._unread[key] = None


def _parse(entry: str) -> tuple[str, Any]:
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


def _expected_kind(key: str) -> str:
    for ends, kind in ((_TEXTS, "str"), (_BOOLS, "bool"), (_FLOATS, "float")):
        if key.endswith(ends):
            return kind
    return "int"


def _kind(value: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(value, kind):
            return name
    return "an array"
