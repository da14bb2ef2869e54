"""The decimal notations of a range of integers, as alternatives in llama.cpp's grammar notation."""

from __future__ import annotations

MOST_DIGITS = 15
"""After the first digit, where nothing bounds a number. Bounds must have fewer in all."""


def integer_range(low: int | None, high: int | None) -> str:
    """Every integer from ``low`` to ``high`` (None: no bound); at least one of them is given.

    Raises ValueError where there is none.
    """
    if low is not None and high is not None:
        if low > high:
            raise ValueError(f"no integer lies between {low} and {high}")
        return _between(low, high)
    if low is not None:
        return _at_least(low) if low >= 0 else _from_negative(low)
    assert high is not None
    if high >= 0:
        return f'"-" [1-9] {_digits(0, MOST_DIGITS)} | {_between(0, high)}'
    return f'"-" ({_at_least(-high)})'


def _from_negative(low: int) -> str:
    return f'"-" ({_between(0, -low)}) | [0] | [1-9] {_digits(0, MOST_DIGITS)}'


def _between(low: int, high: int) -> str:
    if high < 0:
        return f'"-" ({_between(-high, -low)})'
    if low < 0:
        return f'"-" ({_between(0, -low)}) | {_between(0, high)}'
    parts, start = [], str(low)
    for digits in range(len(start), len(str(high))):
        parts.append(_same_length(start, "9" * digits))
        start = "1" + "0" * digits
    return " | ".join([*parts, _same_length(start, str(high))])


def _same_length(low: str, high: str) -> str:
    """From ``low`` to ``high``, two texts of as many digits."""
    common = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    parts = [f'"{low[:common]}"'] if common else []
    if common == len(low):
        return parts[0]
    a, b = low[common], high[common]
    rest_low, rest_high = low[common + 1 :], high[common + 1 :]
    if not rest_low:
        return " ".join([*parts, f"[{a}-{b}]"])
    return " ".join([*parts, f"({_with_rest(a, rest_low, b, rest_high)})"])


def _with_rest(a: str, rest_low: str, b: str, rest_high: str) -> str:
    size = len(rest_low)
    zeros, nines, any_digits = "0" * size, "9" * size, _digits(size, size)
    before, after = chr(ord(b) - 1), chr(ord(a) + 1)
    last = f"{_range(b, b)} {_same_length(zeros, rest_high)}"
    if rest_low == zeros:
        return f"{_range(a, before)} {any_digits} | {last}"
    parts = [f"[{a}] ({_same_length(rest_low, nines)})"]
    if a < before and rest_high == nines:
        return f"{parts[0]} | {_range(after, b)} {any_digits}"
    if a < before:
        parts.append(f"{_range(after, before)} {any_digits}")
    return " | ".join([*parts, last])


def _at_least(low: int) -> str:
    text = str(low)
    if low == 0:
        return f"[0] | [1-9] {_digits(0, MOST_DIGITS)}"
    first, rest = text[0], text[1:]
    before, after = chr(ord(first) - 1), chr(ord(first) + 1)
    parts = [f"{_range('1', before)} {_digits(len(text), MOST_DIGITS)}"] if first > "1" else []
    if not rest:
        return " | ".join([*parts, f"{_range(first, '9')} {_digits(0, MOST_DIGITS)}"])
    same = _same_length(rest, "9" * len(rest))
    parts.append(f"{_range(first, first)} ({same} | {_digits(len(text), MOST_DIGITS)})")
    if first < "9":
        parts.append(f"{_range(after, '9')} {_digits(len(rest), MOST_DIGITS)}")
    return " | ".join(parts)


def _digits(least: int, most: int) -> str:
    if least == most:
        return "[0-9]" if least == 1 else f"[0-9]{{{least}}}"
    return f"[0-9]{{{least},{most}}}"


def _range(low: str, high: str) -> str:
    return f"[{low}]" if low == high else f"[{low}-{high}]"
