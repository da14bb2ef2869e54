"""JSON as llama-server reads and writes it: strict on the way in, compact and always valid on the way out."""

from __future__ import annotations

import json
import math
import re
import struct
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any

from starlette.requests import Request

from mlxserver.api.aside import LARGE, aside_if
from mlxserver.api.errors import ApiError, RequestFault, invalid_request
from mlxserver.api.patient_json import TooManyValues, has_many_values, patient_decoder

MAX_PARTS = 1024
"""Fields of a form."""

TYPE_ERROR = "[json.exception.type_error.302] type must be {}, but is {}"

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1
_LONE_SURROGATE_HINT = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


async def read_json(request: Request) -> Any:
    """The request's body: JSON, or the text fields of a ``multipart/form-data`` form as an object of strings.

    Raises ``ApiError`` (500, as llama-server answers) when it is not valid JSON.
    """
    body = await request.body()
    content_type = request.headers.get("content-type", "")
    if content_type.lower().startswith("multipart/form-data"):
        return await aside_if(len(body) > LARGE, lambda: parse_form(content_type, body))
    return await aside_if(len(body) > LARGE, lambda: parse_json(body))


def parse_json(body: bytes) -> Any:
    """Strict RFC 8259: no NaN, overflowing number or lone surrogate; of equal keys the last one counts."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _parse_error(body, error.start, "invalid string: ill-formed UTF-8 byte") from None
    if not text.strip(" \t\r\n"):
        raise _parse_error(body, len(body), "unexpected end of input; expected '[', '{', or a literal")
    try:
        value = (patient_decoder(**_HOOKS) if has_many_values(body) else _DECODER).decode(text)
        if _LONE_SURROGATE_HINT.search(body):
            _refuse_surrogates(body, value)
    except json.JSONDecodeError as error:
        raise _parse_error(body, len(text[: error.pos].encode()), error.msg) from None
    except RecursionError:
        raise _parse_error(body, 0, "the document is nested too deeply") from None
    except TooManyValues as error:
        raise invalid_request(str(error)) from None
    except _NumberError as error:
        raise RequestFault(str(error)) from None
    return value


def parse_form(content_type: str, body: bytes) -> dict[str, Any]:
    """The text fields of a form; a name given twice becomes a list. Files are left out.

    Raises ``ApiError`` where the boundary is missing or does not enclose the body.
    """
    if body.count(b"content-disposition") + body.count(b"Content-Disposition") > MAX_PARTS:
        raise invalid_request(f"more than {MAX_PARTS} parts in a multipart/form-data body")
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1")
    message = BytesParser(policy=HTTP).parsebytes(head + body)
    if message.defects or not message.is_multipart():
        raise invalid_request("Malformed multipart/form-data body")
    fields: dict[str, list[str]] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        if name is None or part.get_filename() is not None:
            continue
        payload = part.get_payload(decode=True)
        text = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
        fields.setdefault(str(name), []).append(text)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def dump_json(value: Any) -> str:
    """Compact JSON in insertion order. NaN and infinities become null; the text is always valid UTF-8."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_finite(value))
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def float32(value: float) -> float:
    """``value`` as a 32-bit float: how llama-server keeps, and so prints, every sampling parameter."""
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def type_name(value: Any) -> str:
    """The name error texts give to the type of a parsed value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def wrong_type(expected: str, value: Any) -> ValueError:
    """The JSON library's complaint about a value of another type than ``expected``."""
    return ValueError(TYPE_ERROR.format(expected, type_name(value)))


class _NumberError(Exception):
    pass


def _parse_int(text: str) -> int | float:
    if len(text) > 20:
        return _parse_float(text)
    value = int(text)
    return value if _INT64_MIN <= value <= _UINT64_MAX else _parse_float(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _NumberError(f"[json.exception.out_of_range.406] number overflow parsing '{text[:100]}'")
    return value


def _refuse_constant(text: str) -> Any:
    raise _NumberError(
        "[json.exception.parse_error.101] parse error: syntax error while parsing value - "
        f"invalid literal; last read: '{text[:2]}'"
    )


_HOOKS: dict[str, Any] = {
    "parse_int": _parse_int,
    "parse_float": _parse_float,
    "parse_constant": _refuse_constant,
}
_DECODER = json.JSONDecoder(**_HOOKS)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_FLOAT = struct.Struct("f")


def _parse_error(body: bytes, position: int, reason: str) -> ApiError:
    before = body[:position]
    line = before.count(b"\n") + 1
    column = position - before.rfind(b"\n")
    return RequestFault(
        f"[json.exception.parse_error.101] parse error at line {line}, column {column}: "
        f"syntax error while parsing value - {reason}"
    )


def _refuse_surrogates(body: bytes, value: Any) -> None:
    if _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        hint = _LONE_SURROGATE_HINT.search(body)
        raise _parse_error(
            body,
            hint.end() if hint else 0,
            "invalid string: surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF",
        )


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
