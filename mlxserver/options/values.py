"""Numbers, words and lists as C++ and llama-server read them from a command line."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, NoReturn

TRUE_WORDS = frozenset({"on", "enabled", "true", "1"})
FALSE_WORDS = frozenset({"off", "disabled", "false", "0"})
AUTO_WORDS = frozenset({"auto", "-1"})

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FLOAT_MIN = 1.17549435082228750797e-38
"""The smallest normal 32-bit float; C's strtof reports what is smaller and inexact as out of range."""

SPACE = r"[ \t\n\v\f\r]*"
INTEGER = re.compile(SPACE + r"([+-]?)0*([0-9]+)")
FLOAT = re.compile(
    SPACE
    + r"([+-]?)(?:(?P<hex>0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?)"
    + r"|(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)"
    + r"|(?P<word>inf|nan))",
    re.IGNORECASE,
)
ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9a-fA-F]{2}))")
ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


class BadValue(ValueError):
    """A value that an option cannot take; the text is llama-server's reason."""


def _integer(text: str, name: str) -> int:
    """The integer that ``text`` begins with, as C's strtol reads it; ``name`` is the error's text."""
    found = INTEGER.match(text)
    if not found or len(found[2]) > 20:
        raise BadValue(name)
    number = int(found[2])
    return -number if found[1] == "-" else number


def stoi(text: str) -> int:
    number = _integer(text, "stoi")
    if not INT_MIN <= number <= INT_MAX:
        raise BadValue("stoi")
    return number


def stoul(text: str, name: str = "stoul") -> int:
    """A minus sign wraps around, as in C."""
    number = _integer(text, name)
    if abs(number) >= 2**64:
        raise BadValue(name)
    return number % 2**64


def to_float32(value: float) -> float:
    """The nearest 32-bit float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def stof(text: str) -> float:
    """The 32-bit float that ``text`` begins with."""
    found = FLOAT.match(text)
    if not found:
        raise BadValue("stof")
    if found["word"]:
        value = float(found["word"])
    else:
        value = _float_in_range(found["hex"], found["decimal"])
    return -value if found[1] == "-" else value


def _float_in_range(hexadecimal: str | None, decimal: str | None) -> float:
    try:
        exact = float.fromhex(hexadecimal) if hexadecimal else float(decimal or "")
        value = to_float32(exact)
    except OverflowError:
        raise BadValue("stof") from None
    mantissa = re.split("[ep]" if decimal is None else "e", (hexadecimal or decimal or "").lower())[0]
    is_zero = not re.search("[1-9a-f]" if decimal is None else "[1-9]", mantissa.removeprefix("0x"))
    is_tiny = abs(value) < FLOAT_MIN and (value != exact or exact == 0.0)
    if math.isinf(value) or (is_tiny and not is_zero):
        raise BadValue("stof")
    return value


def bool_word(text: str) -> bool:
    if text in TRUE_WORDS:
        return True
    if text in FALSE_WORDS:
        return False
    raise BadValue("invalid boolean value")


def switch_word(text: str) -> str | None:
    """``on``, ``off`` or ``auto`` for any word of that meaning."""
    for meaning, words in (("on", TRUE_WORDS), ("off", FALSE_WORDS), ("auto", AUTO_WORDS)):
        if text in words:
            return meaning
    return None


def split_csv(text: str) -> list[str]:
    """One CSV row. A quote inside an unquoted field is itself, a doubled one inside quotes is one quote."""
    fields = [""]
    quoted = False
    at = 0
    while at < len(text):
        char = text[at]
        if quoted and text.startswith('""', at):
            fields[-1] += '"'
            at += 1
        elif char == '"' and (quoted or not fields[-1]):
            quoted = not quoted
        elif char == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += char
        at += 1
    return fields


def process_escapes(text: str) -> str:
    r"""Expands ``\n \r \t \' \" \\ \xNN``; any other backslash stays. ``\xNN`` names a byte of UTF-8."""
    raw = text.encode("utf-8", "surrogateescape")
    expanded = ESCAPE.sub(lambda m: ESCAPED[m[1]] if m[1] else bytes([int(m[2], 16)]), raw)
    return expanded.decode("utf-8", "replace")


def parse_json(text: str) -> Any:
    def constant(name: str) -> NoReturn:
        raise BadValue(f"parse error: {name} is not JSON")

    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise BadValue(f"parse error at line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadValue("parse error: nested too deeply") from None
    except BadValue:
        raise
    except ValueError as error:
        raise BadValue(f"parse error: {error}") from None


def read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError):
        raise BadValue(f"error: failed to open file '{path}'\n") from None


def read_text(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise BadValue(f"error: file '{path}' is not UTF-8\n") from None
