"""The rules that llama.cpp's schema converter has ready, and its notation of literals and counts."""

from __future__ import annotations

from collections.abc import Iterable

SPACE = '| " " | "\\n"{1,2} [ \\t]{0,20}'

PRIMITIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "boolean": ('("true" | "false")', ()),
    "decimal-part": ("[0-9]{1,16}", ()),
    "integral-part": ("[0] | [1-9] [0-9]{0,15}", ()),
    "number": (
        '("-"? integral-part) ("." decimal-part)? ([eE] [-+]? integral-part)?',
        ("integral-part", "decimal-part"),
    ),
    "integer": ('("-"? integral-part)', ("integral-part",)),
    "value": (
        "object | array | string | number | boolean | null",
        ("object", "array", "string", "number", "boolean", "null"),
    ),
    "object": (
        '"{" space ( string ":" space value ("," space string ":" space value)* )? space "}"',
        ("string", "value"),
    ),
    "array": ('"[" space ( value ("," space value)* )? space "]"', ("value",)),
    "uuid": (
        '"\\"" [0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} '
        '"-" [0-9a-fA-F]{12} "\\""',
        (),
    ),
    "char": (r'[^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})', ()),
    "string": ('"\\"" char* "\\""', ("char",)),
    "null": ('"null"', ()),
}
"""Name → (rule, the rules that it needs)."""

WHOLE_CHAR = (
    r'root ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F] | [dD] [0-7]) '
    r"[0-9a-fA-F]{2})"
)
"""``char`` without the halves of surrogate pairs, which many JSON readers refuse."""

STRING_FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "date": (
        '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | [1-2] [0-9] | "3" [0-1] )',
        (),
    ),
    "time": (
        '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{3} )? '
        '( "Z" | ( "+" | "-" ) ( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] )',
        (),
    ),
    "date-time": ('date "T" time', ("date", "time")),
    "date-string": ('"\\"" date "\\""', ("date",)),
    "time-string": ('"\\"" time "\\""', ("time",)),
    "date-time-string": ('"\\"" date-time "\\""', ("date-time",)),
}

RESERVED = frozenset({"root", *PRIMITIVES, *STRING_FORMATS})

_ESCAPES = str.maketrans({"\r": "\\r", "\n": "\\n", '"': '\\"', "\\": "\\\\"})


def literal(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def repetition(item: str, least: int, most: int | None, separator: bool = False) -> str:
    """``item`` from ``least`` to ``most`` times (None: no bound), with commas between where asked for."""
    if most == 0:
        return ""
    if (least, most) == (0, 1):
        return f"{item}?"
    if separator:
        further = f'("," space {item})'
        text = f"{item} {repetition(further, max(least - 1, 0), None if most is None else most - 1)}"
        return f"({text})?" if least == 0 else text
    if most is None and least < 2:
        return f"{item}{'*+'[least]}"
    return f"{item}{{{least},{'' if most is None else most}}}"


def other_keys(keys: Iterable[str]) -> str:
    """A JSON string that is none of ``keys``. Escapes come only after what tells it from them."""
    tree: dict[str, dict[str, object]] = {}
    for key in keys:
        branch = tree
        for char in key:
            branch = branch.setdefault(char, {})  # type: ignore[assignment]
        branch[""] = {}
    return f'["] {_other_than(tree)} ["]'


def _other_than(tree: dict[str, dict[str, object]]) -> str:
    chars = sorted(char for char in tree if char)
    choices = [f"{_one_of([char])} {_other_than(tree[char])}" for char in chars]  # type: ignore[arg-type]
    choices.append(f'[^"\\\\\\x7F\\x00-\\x1F{"".join(map(_escaped, chars))}] char*')
    return f"( {' | '.join(choices)} ){'' if '' in tree else '?'}"


def _one_of(chars: Iterable[str]) -> str:
    return f"[{''.join(map(_escaped, chars))}]"


def _escaped(char: str) -> str:
    return f"\\U{ord(char):08X}" if char in '^-]["\\\r\n' or not char.isprintable() else char
