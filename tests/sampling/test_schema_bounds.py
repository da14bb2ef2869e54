"""Numbers of schemas that llguidance cannot take are refused before it sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxserver.sampling.grammar.compiler import compiler_of
from mlxserver.sampling.params import Grammar, SamplerError
from tests.api.fake_engine import ByteTokenizer

SMALLEST = -(2**63)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"enum": [[SMALLEST]]}, {"type": "array"}]},  # these three ended the process
        {
            "allOf": [
                {"properties": {"a": {"enum": [SMALLEST + 1, 1]}}},
                {"required": ["a"], "type": "object"},
            ]
        },
        {"anyOf": [{"type": "integer", "minimum": -5}, {"const": SMALLEST}, {"$ref": "#"}]},
        {"const": 10**18},
        {"type": "number", "multipleOf": 2**31},  # these held a thread for minutes
        {"type": "number", "multipleOf": -(2**31)},
        {"type": "integer", "multipleOf": 9999991},
        {"type": "integer", "multipleOf": 1000000.5},
    ],
)
@pytest.mark.parametrize("kind", ["json_schema", "lark"])
def test_numbers_that_would_stop_the_server(schema: dict[str, Any], kind: Any) -> None:
    text = json.dumps(schema)
    text = text if kind == "json_schema" else f"%llguidance {{}}\nstart: %json {text}"
    with pytest.raises(SamplerError, match="not supported"):
        compiler_of(ByteTokenizer()).check(Grammar(kind, text))


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 10**18 - 1},
        {"allOf": [{"enum": [[-(10**18) + 1]]}, {"type": "array"}]},
        {"type": "integer", "multipleOf": 65536},
        {"type": "integer", "multipleOf": 12000000},
        {"type": "number", "multipleOf": 0.001},
        {"properties": {"multipleOf": {"type": "integer"}}},
        {"const": True, "multipleOf": 5},
    ],
)
def test_numbers_that_can_be_held_to(schema: dict[str, Any]) -> None:
    compiler_of(ByteTokenizer()).check(Grammar("json_schema", json.dumps(schema)))
