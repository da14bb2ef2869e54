"""How one request field takes its value: llama-server's coercions, limits and error texts.

Readers take a JSON value and give the field's value, or raise ``ValueError`` with the text a client sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mlxserver.api.json_body import float32, wrong_type

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
UNLIMITED = math.inf
FLOAT_MAX = 3.4028234663852886e38

Reader = Callable[[Any], Any]
Schema = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DescribedReader(Generic[T]):
    """A reader and the JSON schema of what it takes."""

    read: Callable[[Any], T]
    schema: Schema

    def __call__(self, value: Any) -> T:
        return self.read(value)


def described(**schema: Any) -> Callable[[Callable[[Any], T]], DescribedReader[T]]:
    return lambda read: DescribedReader(read, schema)


def schema_of(reader: Reader) -> Schema:
    """Empty where the reader does not say."""
    return dict(reader.schema) if isinstance(reader, DescribedReader) else {}


@described(type="boolean")
def flag(value: Any) -> bool:
    """Only true and false; numbers are an error."""
    if not isinstance(value, bool):
        raise wrong_type("boolean", value)
    return value


@described(type="string")
def text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type("string", value)
    return value


def integer(
    *,
    hard: tuple[int, int] | None = None,
    soft: tuple[int, int] | None = None,
    bits: int = 32,
    signed: bool = True,
    booleans: bool = True,
) -> Reader:
    """A C integer: fractions are cut off, larger values wrap. ``soft`` limits clamp, ``hard`` ones refuse."""

    def read(value: Any) -> int:
        if not isinstance(value, int | float) or (isinstance(value, bool) and not booleans):
            raise wrong_type("number", value)
        number = _from_float(value, bits, signed) if isinstance(value, float) else _wrap(value, bits, signed)
        if hard is not None and not hard[0] <= number <= hard[1]:
            raise _out_of_range(str(hard[0]), str(hard[1]), str(number))
        return number if soft is None else max(soft[0], min(soft[1], number))

    return DescribedReader(read, {"type": "integer"} | _limits(hard))


def number(
    *, hard: tuple[float, float] | None = None, soft: tuple[float, float] = (-FLOAT_MAX, FLOAT_MAX)
) -> Callable[[Any], float]:
    """A 32-bit float; booleans count as 0 and 1. ``hard`` limits replace the ``soft`` ones."""
    hard32 = None if hard is None else (float32(hard[0]), float32(hard[1]))

    def read(value: Any) -> float:
        if not isinstance(value, int | float):
            raise wrong_type("number", value)
        result = float32(float(value))
        if hard32 is not None and not hard32[0] <= result <= hard32[1]:
            raise _out_of_range(f"{hard32[0]:f}", f"{hard32[1]:f}", f"{result:f}")
        return result if soft is None else max(soft[0], min(soft[1], result))

    return DescribedReader(read, {"type": "number"} | _limits(hard))


@described(type="array", items={"type": "string"})
def strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong_type("array", value)
    return tuple(text(item) for item in value)


@described(type="array", items={"type": "string"})
def strings_or_nothing(value: Any) -> tuple[str, ...]:
    """An array of strings; anything else is as if it were empty."""
    try:
        return strings(value)
    except ValueError:
        return ()


def items_of(value: Any) -> list[Any]:
    """What a loop over a JSON value gives: a plain value gives itself once."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def value_or(body: dict[str, Any], key: str, read: Reader, default: Any) -> Any:
    """``body[key]``, or ``default`` where it is absent, null or of a wrong type."""
    value = body.get(key)
    if value is None:
        return default
    try:
        return read(value)
    except ValueError:
        return default


def _limits(hard: tuple[float, float] | None) -> Schema:
    """What soft limits clamp is no error, so they are none here."""
    return {} if hard is None else {"minimum": hard[0], "maximum": hard[1]}


def _from_float(value: float, bits: int, signed: bool) -> int:
    """What does not fit becomes the smallest integer, as x86's conversion has it."""
    width = bits if signed else 64
    limit = 1 << (width - 1)
    whole = int(value)
    return _wrap(whole if -limit <= whole < limit else -limit, bits, signed)


def _wrap(value: int, bits: int, signed: bool) -> int:
    size = 1 << bits
    wrapped = value % size
    return wrapped - size if signed and wrapped >= size // 2 else wrapped


def _out_of_range(low: str, high: str, value: str) -> ValueError:
    return ValueError(f"Value must be between {low} <= value <= {high}, but got {value}")
