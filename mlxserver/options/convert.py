"""From the text of a value to the typed value, by the ``type`` of an option's row."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

from mlxserver.options.notices import Notices
from mlxserver.options.samplers import samplers_by_letter, samplers_by_name
from mlxserver.options.table import Row
from mlxserver.options.values import (
    BadValue,
    parse_json,
    read_bytes,
    read_text,
    split_csv,
    stof,
    stoi,
    stoul,
    switch_word,
)

IGNORED = object()
"""What a converter returns for a value that leaves the option as it is."""

MAX_CPUS = 512
"""llama.cpp's GGML_MAX_N_THREADS."""

LOGIT_BIAS = re.compile(r"\s*([+-]?[0-9]+)\s*([+-])(.+)", re.DOTALL)


def to_int(row: Row, text: str) -> int:
    value = stoi(text)
    if row.removed:
        raise BadValue(f"the argument has been removed. {row.removed}")
    too_small = row.min is not None and value < row.min
    too_large = row.max is not None and value > row.max
    if too_small or too_large or (row.not_zero and value == 0):
        raise BadValue(row.error.format(value))
    return value


def to_pair(row: Row, first: str, second: str) -> tuple[int, int]:
    return stoi(first), stoi(second)


def _text(row: Row, text: str, notices: Notices) -> str:
    return text


def _choice(row: Row, text: str, notices: Notices) -> str:
    if text not in row.choices:
        raise BadValue(row.error.format(text))
    return text


def _switch_word(row: Row, text: str, notices: Notices) -> str:
    word = switch_word(text)
    if word not in row.words:
        raise BadValue(f"error: unknown value for {row.long}: '{text}'\n")
    return word or ""


def _float(row: Row, text: str, notices: Notices) -> float:
    return stof(text)


def _temperature(row: Row, text: str, notices: Notices) -> float:
    return max(stof(text), 0.0)


def _dry_base(row: Row, text: str, notices: Notices) -> Any:
    base = stof(text)
    return base if base >= 1.0 else IGNORED


def _finite(row: Row, text: str, notices: Notices) -> float:
    value = stof(text)
    if not math.isfinite(value):
        raise BadValue(row.error)
    return value


def _finite_positive(row: Row, text: str, notices: Notices) -> float:
    """The reciprocal is finite too: every normal 32-bit float has one."""
    value = _finite(row, text, notices)
    if value <= 0.0:
        raise BadValue(row.error)
    return value


def _inverse(row: Row, text: str, notices: Notices) -> float:
    value = stof(text)
    return 1.0 / value if value else math.copysign(math.inf, value)


def _seed(row: Row, text: str, notices: Notices) -> int:
    return stoul(text) % 2**32


def _unsigned(row: Row, text: str, notices: Notices) -> int:
    return stoul(text)


def _layers(row: Row, text: str, notices: Notices) -> int:
    return {"auto": -1, "all": -2}[text] if text in ("auto", "all") else stoi(text)


def _samplers(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    names, unknown = samplers_by_name(text.split(";"))
    for name in unknown:
        notices.warning(f"unable to match sampler by name '{name}'")
    return names


def _sampler_letters(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    names, unknown = samplers_by_letter(text)
    for letter in unknown:
        notices.warning(f"unable to match sampler by char '{letter}'")
    return names


def _logit_bias(row: Row, text: str, notices: Notices) -> tuple[int, float]:
    found = LOGIT_BIAS.match(text)
    try:
        if not found:
            raise BadValue(text)
        bias = stof(found[3])
        return stoi(found[1]), -bias if found[2] == "-" else bias
    except BadValue:
        raise BadValue("invalid input format") from None


def _csv(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    return tuple(field for field in split_csv(text) if field or not row.drop_empty)


def _names(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip(" \t\n\v\f\r")))


def _scale_one(row: Row, text: str, notices: Notices) -> tuple[tuple[str, float], ...]:
    return tuple((path, 1.0) for path in split_csv(text))


def _scaled(row: Row, text: str, notices: Notices) -> tuple[tuple[str, float], ...]:
    parts = [item.split(":") for item in split_csv(text)]
    if any(len(part) != 2 for part in parts):
        raise BadValue(row.error)
    scaled = tuple((path, stof(scale)) for path, scale in parts)
    if not all(math.isfinite(scale) for _, scale in scaled):
        raise BadValue(row.error)
    return scaled


def _spec_types(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in row.choices:
            raise BadValue(row.error.format(name))
        if name == "none":
            return ()
    return names


def _floats(row: Row, text: str, notices: Notices) -> tuple[float, ...]:
    return tuple(stof(part) for part in re.split(r"[,/]+", text))


def _sizes(row: Row, text: str, notices: Notices) -> tuple[int, ...]:
    return tuple(stoul(part, "stoull") for part in re.split(r"[,/]+", text))


def _kv_override(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    """The overrides as they are, ``KEY=TYPE:VALUE``; what they mean is for who knows the metadata."""
    items = tuple(split_csv(text))
    for item in items:
        if not _is_override(item):
            raise BadValue(f"error: Invalid type for KV override: {item}\n")
    return items


def _is_override(item: str) -> bool:
    """llama.cpp keeps a key or a text in 128 bytes."""
    key, _, rest = item.partition("=")
    kind, colon, value = rest.partition(":")
    is_type = kind in ("int", "float") or (kind == "bool" and value in ("true", "false"))
    return bool(colon) and _bytes(key) < 128 and (is_type or (kind == "str" and _bytes(value) < 128))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _template_kwargs(row: Row, text: str, notices: Notices) -> dict[str, Any]:
    parsed = parse_json(text)
    if not isinstance(parsed, dict):
        raise BadValue("the template kwargs are not a JSON object")
    if "enable_thinking" in parsed:
        notices.warning(
            "Setting 'enable_thinking' via --chat-template-kwargs is deprecated. "
            "Use --reasoning on / --reasoning off instead."
        )
    return parsed


def _json(row: Row, text: str, notices: Notices) -> Any:
    return parse_json(text)


def _json_file(row: Row, text: str, notices: Notices) -> Any:
    return parse_json(read_text(text))


def _file(row: Row, text: str, notices: Notices) -> str:
    return read_text(text)


def _key_file(row: Row, text: str, notices: Notices) -> tuple[str, ...]:
    lines = read_bytes(text).decode("utf-8", "surrogateescape").split("\n")
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:  # everybody would be let in
        raise BadValue(f"error: no keys in file '{text}'\n")
    return keys


def _directory(row: Row, text: str, notices: Notices) -> str:
    if "\0" in text or not os.path.isdir(text):
        raise BadValue(f"not a directory: {text}")
    return text if text.endswith(os.sep) else text + os.sep


def _cpu_mask(row: Row, text: str, notices: Notices) -> str:
    if not re.fullmatch("[0-9a-fA-F]*", text.removeprefix("0x")[:128]):
        raise BadValue("invalid cpumask")
    return text


def _cpu_range(row: Row, text: str, notices: Notices) -> str:
    first, dash, last = text.partition("-")
    if not dash or any(stoul(part, "stoull") >= MAX_CPUS for part in (first, last) if part):
        raise BadValue("invalid range")
    return text


CONVERTERS: dict[str, Callable[[Row, str, Notices], Any]] = {
    "str": _text,
    "choice": _choice,
    "switch_word": _switch_word,
    "float": _float,
    "temperature": _temperature,
    "dry_base": _dry_base,
    "finite": _finite,
    "finite_positive": _finite_positive,
    "inverse": _inverse,
    "seed": _seed,
    "unsigned": _unsigned,
    "layers": _layers,
    "samplers": _samplers,
    "sampler_letters": _sampler_letters,
    "logit_bias": _logit_bias,
    "csv": _csv,
    "names": _names,
    "csv_scale_one": _scale_one,
    "scaled": _scaled,
    "spec_types": _spec_types,
    "floats": _floats,
    "sizes": _sizes,
    "kv_override": _kv_override,
    "template_kwargs": _template_kwargs,
    "json": _json,
    "json_file": _json_file,
    "file": _file,
    "key_file": _key_file,
    "directory": _directory,
    "cpu_mask": _cpu_mask,
    "cpu_range": _cpu_range,
}


def to_value(row: Row, text: str, notices: Notices) -> Any:
    """The typed value of a ``string`` option. Raises ``BadValue`` with llama-server's reason."""
    return CONVERTERS[row.type](row, text, notices)
