from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserver.options.values import (
    BadValue,
    bool_word,
    parse_json,
    process_escapes,
    split_csv,
    stof,
    stoi,
    stoul,
    switch_word,
    to_float32,
)


@pytest.mark.parametrize(
    "text, value",
    [
        ("12", 12),
        (" \t12abc", 12),
        ("+5", 5),
        ("-0", 0),
        ("0x10", 0),
        ("1e5", 1),
        ("007", 7),
        ("2147483647", 2**31 - 1),
    ],
)
def test_integers_are_read_as_far_as_they_go(text: str, value: int) -> None:
    assert stoi(text) == value


@pytest.mark.parametrize("text", ["", "x", "- 5", "--5", "2147483648", "-2147483649", "9" * 5000, "\u0663"])
def test_what_begins_with_no_integer_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="^stoi$"):
        stoi(text)


def test_unsigned_integers_wrap_around() -> None:
    assert stoul("-1") == 2**64 - 1
    assert stoul("18446744073709551615") == 2**64 - 1
    with pytest.raises(BadValue, match="^stoul$"):
        stoul("18446744073709551616")


@pytest.mark.parametrize(
    "text, value",
    [(".5", 0.5), ("5.", 5.0), ("1e2x", 100.0), ("1e+", 1.0), ("0x1.8p1", 3.0), ("0x1p3", 8.0), ("-2", -2.0)]
    + [
        ("infinit", math.inf),
        ("-inf", -math.inf),
        ("0e-999", 0.0),
        ("1.17549435e-38", to_float32(1.17549435e-38)),
    ],
)
def test_floats_are_read_as_far_as_they_go(text: str, value: float) -> None:
    assert stof(text) == value


def test_nan_is_a_float() -> None:
    assert math.isnan(stof("nan(1)"))


@pytest.mark.parametrize(
    "text", ["", ".", "x", "1e99", "-1e99", "1e-50", "1e-40", "1e400", "1e-400", "3.5e38"]
)
def test_what_is_no_float_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="^stof$"):
        stof(text)


def test_floats_have_32_bits() -> None:
    assert stof("0.8") == 0.800000011920929


@given(st.floats(width=32, allow_nan=False, allow_subnormal=False))
def test_every_float_reads_back(value: float) -> None:
    assert struct.pack("f", stof(repr(value))) == struct.pack("f", value)


@pytest.mark.parametrize("word", ["on", "enabled", "true", "1"])
def test_true_words(word: str) -> None:
    assert bool_word(word) and switch_word(word) == "on"


@pytest.mark.parametrize("word", ["off", "disabled", "false", "0"])
def test_false_words(word: str) -> None:
    assert not bool_word(word) and switch_word(word) == "off"


@pytest.mark.parametrize("word", ["", "yes", "TRUE", "On", "no", " on"])
def test_other_words(word: str) -> None:
    assert switch_word(word) is None
    with pytest.raises(BadValue, match="^invalid boolean value$"):
        bool_word(word)


def test_auto_words() -> None:
    assert switch_word("auto") == switch_word("-1") == "auto"


@pytest.mark.parametrize(
    "text, fields",
    [
        ("a,b", ["a", "b"]),
        ("", [""]),
        (",", ["", ""]),
        ('"a,b",c', ["a,b", "c"]),
        ('"say ""hi""",x', ['say "hi"', "x"]),
        ('a"b,c', ['a"b', "c"]),
        ('""', [""]),
        ('"open,', ["open,"]),
    ],
)
def test_csv(text: str, fields: list[str]) -> None:
    assert split_csv(text) == fields


@pytest.mark.parametrize(
    "text, expanded",
    [
        (r"a\nb\t\r", "a\nb\t\r"),
        (r"\'\"\\n", "'\"\\n"),
        (r"\q\x4", r"\q\x4"),
        (r"\xe2\x82\xac", "€"),
        ("\\", "\\"),
    ],
)
def test_escapes(text: str, expanded: str) -> None:
    assert process_escapes(text) == expanded


@given(st.text())
def test_escapes_never_fail(text: str) -> None:
    process_escapes(text.encode("utf-8", "replace").decode())


@pytest.mark.parametrize("text", ["", "nope", "{", "NaN", "[Infinity]", "1 2", "[" * 100_000, "9" * 5000])
def test_bad_json(text: str) -> None:
    with pytest.raises(BadValue, match="^parse error"):
        parse_json(text)
