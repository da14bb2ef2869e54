"""The sampling parameters a model recommends, keyed by the field of SamplingParams.

``samplers`` holds the names as written; they may be aliases, like those of the option ``--samplers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FLOATS = {
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
_INTEGERS = {"top_k": "top_k", "penalty_last_n": "repeat_last_n", "mirostat": "mirostat"}
_OF_GENERATION_CONFIG = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
"""Where llama.cpp's converter stores a key of generation_config.json under another name."""


def from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """``general.sampling.*`` of a GGUF file. Values of the wrong type are left out, as in llama.cpp."""
    prefix = "general.sampling."
    return _read({key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)})


def from_generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter takes from a folder's generation_config.json."""
    return _read({_OF_GENERATION_CONFIG.get(key, key): value for key, value in config.items()})


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if name in _FLOATS:
                # llama.cpp passes the value through text with six decimals.
                found[_FLOATS[name]] = float(f"{value:f}")
            elif name in _INTEGERS:
                found[_INTEGERS[name]] = int(value)
    sequence = values.get("sequence")
    if isinstance(sequence, str) and sequence:
        found["samplers"] = tuple(sequence.split(";"))
    return found
