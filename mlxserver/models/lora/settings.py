"""Values of an adapter_config.json with their types checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mlxserver.models.lora.adapter import AdapterError


def number(settings: Mapping[str, Any], key: str) -> float:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(key, value, "a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise _bad(key, value, "a finite number")
    return result


def count(settings: Mapping[str, Any], key: str) -> int:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _bad(key, value, "a positive whole number")
    return value


def mapping(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Empty where there is none."""
    value = settings.get(key)
    if value is not None and not isinstance(value, dict):
        raise _bad(key, value, "an object")
    return value or {}


def tokens(settings: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Empty where there are none."""
    value = settings.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise _bad(key, value, "a list of token ids")
    return tuple(value)


def _bad(key: str, value: Any, wanted: str) -> AdapterError:
    return AdapterError(f"adapter_config.json: {key[:80]} is {repr(value)[:60]}, not {wanted}")
