"""Numbers of a JSON schema that llguidance cannot take: they would end the process or hold it for minutes."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

LARGEST = 10**18
"""Whole numbers from here on are refused: near -2**63 llguidance overflows its stack."""
MOST_DIGITS = 5
"""Significant digits of ``multipleOf``: the automaton has about as many states as the number without its
zeros (65,536: 0.01 s; 999,999: 6 s; 9,999,991: minutes)."""
_MULTIPLE_OF = re.compile(r'"multipleOf"\s*:\s*(-?\d[\d.eE+-]*)')
_WHOLE = re.compile(r"\d{19,}")


def refused_number(schema: Any) -> str | None:
    """Why a schema has a number that cannot be taken; None where it has none."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if reason := _refused_multiple(value.get("multipleOf")):
                return reason
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and abs(value) >= LARGEST:
            return f"{value}: whole numbers of 19 digits and more are not supported"
    return None


def refused_number_of_text(grammar: str) -> str | None:
    """The same for a grammar in llguidance's notation, which may have schemas in it."""
    if found := _WHOLE.search(grammar):
        return f"{found[0][:40]}: whole numbers of 19 digits and more are not supported"
    values = (found[1] for found in _MULTIPLE_OF.finditer(grammar))
    return next((reason for value in values if (reason := _refused_multiple(_number(value)))), None)


def _refused_multiple(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    digits = Decimal(str(value)).normalize().as_tuple().digits
    if len(digits) > MOST_DIGITS:
        return f"multipleOf {value}: more than {MOST_DIGITS} significant digits are not supported"
    return None


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
