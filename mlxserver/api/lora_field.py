"""A list of ``{"id", "scale"}``: a request's ``lora`` field, and the body of ``POST /lora-adapters``."""

from __future__ import annotations

from typing import Any

from mlxserver.api.field_types import integer, number, value_or
from mlxserver.api.request_bounds import MAX_ADAPTERS, check_count


def read_scales(entries: list[Any]) -> dict[int, float]:
    """Adapter id -> scale; of an id's entries the last holds. Without an id it is -1, without a scale 0.

    Raises ``ValueError`` for too many.
    """
    check_count(entries, MAX_ADAPTERS)
    objects = [entry if isinstance(entry, dict) else {} for entry in entries]
    return {value_or(e, "id", integer(), -1): value_or(e, "scale", number(), 0.0) for e in objects}
