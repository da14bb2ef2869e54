"""What is JSON and what is not, and the form of what goes out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserver.api.errors import ApiError
from mlxserver.api.json_body import dump_json, float32, parse_form, parse_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"  ", b"{", b'{"a":1,}', b"{'a':1}", b"[1] x", b"01", b"1.", b"+1", b"NaN", b"Infinity",
        b"-Infinity", b"1e999", b"[-1e999]", b"9" * 5000, b'"\\ud800"', b'["\\udc00 \\ud83d"]', b'"a\tb"',
        b'"\xff"', b"[" * 100_000, b'{"a":' * 50_000, b'{"a":1 /* c */}', b"tru", b'"\\x"',
    ],
)  # fmt: skip
def test_refused_as_llama_server_does(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(body)
    assert caught.value.status == 500
    assert caught.value.message.startswith(
        ("[json.exception.parse_error.101]", "[json.exception.out_of_range.406]")
    )


def test_error_names_line_and_column() -> None:
    with pytest.raises(ApiError, match="at line 2, column 6"):
        parse_json(b'{\n "a":x}')


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"\xef\xbb\xbf[1]", [1]),
        (b" \t\r\n1 ", 1),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", 2.0**64),
        (b"-9223372036854775809", -(2.0**63)),
        (b"4e0", 4.0),
        (b"-0", 0),
    ],
)
def test_accepted(body: bytes, value: Any) -> None:
    parsed = parse_json(body)
    assert parsed == value
    assert type(parsed) is type(value)


@given(JSON)
def test_round_trip(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert json.loads(dump_json(value)) == value


@given(st.binary())
def test_any_bytes_parse_or_are_refused(body: bytes) -> None:
    try:
        parse_json(body)
    except ApiError as error:
        assert error.status == 500


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"b":1,"a":[true,null]}'),
        ([1.0, 0.0, -3.4028234663852886e38], "[1.0,0.0,-3.4028234663852886e+38]"),
        ({"a": math.nan, "b": [-math.inf, math.inf, 1]}, '{"a":null,"b":[null,null,1]}'),
        ("é\U0001f600\x01\n", '"é\U0001f600\\u0001\\n"'),
        ("\ud800x", '"\ufffdx"'),
    ],
)
def test_output(value: Any, text: str) -> None:
    assert dump_json(value) == text


@pytest.mark.parametrize(
    ("value", "printed"),
    [(0.8, "0.800000011920929"), (0.05, "0.05000000074505806"), (1, "1.0"), (1e39, "null")],
)
def test_float32(value: float, printed: str) -> None:
    assert dump_json(float32(value)) == printed


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'),
        ("multipart/form-data; boundary=b", b"xxxx"),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx'),
        ("multipart/form-data; boundary=\xff", b"--\xff\r\n\r\n"),
    ],
)
def test_a_form_that_is_none_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_form(content_type, body)
    assert caught.value.status == 400


def test_form_fields_are_strings() -> None:
    body = (
        b'--X\r\nContent-Disposition: form-data; name="content"\r\n\r\nH\xc3\xa9llo\r\n'
        b'--X\r\nContent-Disposition: form-data; name="n"\r\n\r\n1\r\n'
        b'--X\r\nContent-Disposition: form-data; name="n"\r\n\r\n2\r\n'
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\r\n--X--\r\n'
    )
    assert parse_form("multipart/form-data; boundary=X", body) == {"content": "Héllo", "n": ["1", "2"]}
