"""JSON of very many values: read by Python code, which lets other threads work, and no more than so many.

The C code of Python's decoder holds the interpreter until it is through: 3.5 s for 14 MB of empty arrays.
"""

from __future__ import annotations

import json
from json import decoder, scanner
from typing import Any

MANY = 100_000
"""Strings, arrays and objects that the C code reads in less than 0.1 s. It calls our code for each number."""
MAX_CONTAINERS = 1_000_000
"""Arrays and objects of a body: some hundred MB of memory, where 100 MiB of them would be gigabytes."""


MAX_KEYS = 500_000
"""Of an object, whose dict is made at once; biases of every token of a vocabulary are half as many."""


class TooManyValues(Exception):
    """One line that says of what there is too much."""


def has_many_values(body: bytes) -> bool:
    """What lies within strings is counted too, which costs little: a string is read by C code anyway."""
    return body.count(b'"') // 2 + body.count(b"[") + body.count(b"{") > MANY


def patient_decoder(**hooks: Any) -> json.JSONDecoder:
    """For one text; ``hooks`` of ``json.JSONDecoder``. Decoding may raise TooManyValues."""
    n = 0

    def count(value: Any) -> Any:
        nonlocal n
        n += 1
        if n > MAX_CONTAINERS:
            raise TooManyValues(f"more than {MAX_CONTAINERS} arrays and objects in a body")
        return value

    def make_object(pairs: list[tuple[str, Any]]) -> Any:
        if len(pairs) > MAX_KEYS:
            raise TooManyValues(f"more than {MAX_KEYS} keys in an object")
        return count(dict(pairs))

    def parse_array(*arguments: Any) -> Any:
        return count(read_array(*arguments))

    # the standard library's own code for where its C code is missing
    read_array: Any = decoder.JSONArray  # type: ignore[attr-defined]
    make_scanner: Any = scanner.py_make_scanner  # type: ignore[attr-defined]
    made: Any = json.JSONDecoder(object_pairs_hook=make_object, **hooks)
    made.parse_array = parse_array
    made.scan_once = make_scanner(made)
    patient: json.JSONDecoder = made
    return patient
