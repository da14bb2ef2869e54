"""The sampling parameters a GGUF file recommends (``general.sampling.*``)."""

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


def sampling_defaults(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Keyed by the field of SamplingParams. Values of the wrong type are left out, as in llama.cpp.

    ``samplers`` holds the names as written; they may be aliases, like those of the option ``--samplers``.
    """
    found: dict[str, Any] = {}
    for names, convert in ((_FLOATS, _float), (_INTEGERS, int)):
        for name, field in names.items():
            value = metadata.get(f"general.sampling.{name}")
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[field] = convert(value)
    sequence = metadata.get("general.sampling.sequence")
    if isinstance(sequence, str) and sequence:
        found["samplers"] = tuple(sequence.split(";"))
    return found


def _float(value: float) -> float:
    """llama.cpp passes the value through text with six decimals."""
    return float(f"{value:f}")
