"""Whatever a grammar lets through for a schema fits the schema; what cannot be held to is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mlxserver.sampling.grammar.compiler import GrammarCompiler
from mlxserver.sampling.grammar.schema import SchemaError, schema_grammar
from mlxserver.sampling.grammar.state import GrammarState
from mlxserver.sampling.params import Grammar, SamplerError
from tests.sampling.byte_tokens import ByteTokens
from tests.sampling.random_schemas import random_text, schemas

TOKENS = ByteTokens()
COMPILER = GrammarCompiler(TOKENS)


def compiled(schema: Any) -> Grammar:
    grammar = Grammar("json_schema", json.dumps(schema))
    COMPILER.check(grammar)
    return grammar


def fits(schema: Any, text: str) -> bool:
    """Whether the schema's grammar takes the whole text."""
    grammar = compiled(schema)
    state = GrammarState(grammar, COMPILER.matcher(grammar), COMPILER.tokenizer, TOKENS)
    for token in [*text.encode(), TOKENS.eos_id]:
        state.accept(token)
    try:
        state.check()
    except SamplerError:
        return False
    return True


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(schemas(), st.integers(0, 2**30))
def test_random_schemas(schema: dict[str, Any], seed: int) -> None:
    check(schema, seed)


def check(schema: dict[str, Any], seed: int) -> None:
    """A text of the schema is JSON and valid, or the schema is refused."""
    try:
        text = random_text(COMPILER, Grammar("json_schema", json.dumps(schema)), TOKENS, seed)
    except SamplerError:
        return
    if text is not None:
        assert list(Draft202012Validator(schema).iter_errors(json.loads(text.decode()))) == [], text


@pytest.mark.parametrize(
    ("schema", "rules"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 9}, {"root ::= ([5-9])"}),
        ({"enum": ["a", 3, None]}, {r'root ::= ("\"a\"" | "3" | "null")'}),
        ({"type": "string", "format": "date"}, {"root ::= date-string", r'date-string ::= "\"" date "\""'}),
        ({"type": ["string", "null"]}, {"root ::= string | null"}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2},
            {'root ::= "[" space null ("," space null)+ space "]"'},
        ),
        (
            {
                "properties": {"b": {"type": "null"}, "a": {"const": 1}, "c": {"type": "null"}},
                "required": ["a"],
            },
            {
                'root ::= "{" space a-kv ( "," space ( b-kv b-rest | c-kv ) )? space "}"',
                'b-rest ::= ( "," space c-kv )?',
                r'a-kv ::= "\"a\"" space ":" space a',
            },
        ),
        ({}, {"root ::= object"}),
    ],
)
def test_rules_are_those_of_the_reference(schema: dict[str, Any], rules: set[str]) -> None:
    assert rules <= set(str(schema_grammar(schema)).splitlines())


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "integer", "minimum": 105}, ["105", "110", "1000", "999"], ["15", "104", "0105", "-105"]),
        ({"type": "integer", "maximum": -5}, ["-5", "-12"], ["-4", "-05", "5"]),
        ({"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3}, ["-2", "2", "0"], ["-3", "3"]),
        ({"type": "number", "minimum": 0.5}, ["0.5", "7"], ["0.4", "-1"]),
        ({"type": "string", "maxLength": 2}, ['"ab"', '"\\u00e9x"', '""'], ['"abc"', '"\\ud83d"', '"\n"']),
        ({"type": "string", "pattern": "b"}, ['"abc"'], ['"a"']),
        ({"enum": ["a", 1, None], "type": "string"}, ['"a"'], ["1", "null"]),
        ({"type": "array", "prefixItems": [{"type": "null"}, {"const": 2}]}, ["[null,2]"], ["[null]", "[2]"]),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"const": 1}}}]},
            ['{"a":{},"b":1}'],
            ['{"b":1}'],
        ),
        ({"oneOf": [{"type": "null"}, {"const": 1}]}, ["null", "1"], ["2"]),
        (
            {"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
            ['{"a":1,"b":2,"ab":2}', '{"ax\\u0062":2}'],
            ['{"a":2}', '{"\\u0061":2}', '{"b":1}'],
        ),
        (
            {"properties": {"ab": {"const": 1}}, "additionalProperties": {"const": 2}},
            ['{"a":2}', '{"abc":2}', '{"":2}'],
            ['{"ab":2}'],
        ),
        (
            {"$ref": "#/$defs/t", "$defs": {"t": {"properties": {"t": {"$ref": "#/$defs/t"}}}}},
            ['{"t":{"t":{}}}'],
            ['{"t":1}'],
        ),
        (
            {
                "properties": {
                    "": {"const": 1},
                    "root": {"const": 2},
                    "a b": {"const": 3},
                    "a-b": {"const": 4},
                }
            },
            ['{"":1,"root":2,"a b":3,"a-b":4}'],
            ['{"a b":4}'],
        ),
        ({"type": "object", "properties": {"x": True}}, ['{"x":[1,null]}'], ['{"y":1}']),
        ({"type": "integer", "format": "int64"}, ["-12"], ["1.5"]),
    ],
)
def test_what_fits(schema: dict[str, Any], yes: list[str], no: list[str]) -> None:
    assert [text for text in yes if not fits(schema, text)] == []
    assert [text for text in no if fits(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "null"}}, "not"),
        ({"type": "object", "properties": {"a": {"if": {}, "then": False}}}, "if"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "nothing"}, 'Unrecognized schema: {"type":"nothing"}'),
        ({"$ref": "#/absent"}, "Error resolving ref #/absent: absent not in"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer lies between 3 and 2"),
        ({"type": "object", "properties": 5}, "Unrecognized schema: 5"),
        ({"enum": []}, "Unrecognized schema"),
        ({"enum": [1], "type": "string"}, "no value of the enum is of the type string"),
        ({"type": "string", "minLength": "a"}, "minLength"),
        (5, "Unrecognized schema: 5"),
        (True, "Unrecognized schema: true"),
    ],
)
def test_what_cannot_be_held_to_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(SamplerError, match="JSON schema conversion failed") as caught:
        compiled(schema)
    assert named in str(caught.value)


def test_schemas_are_bounded() -> None:
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaError, match="nested too deeply"):
        schema_grammar(deep)
    with pytest.raises(SchemaError, match="too large"):
        schema_grammar({"properties": {f"p{i}": {"const": i} for i in range(20_000)}})


def test_a_schema_without_an_end_is_refused() -> None:
    with pytest.raises(SamplerError, match="failed to parse grammar"):
        compiled({"$ref": "#/$defs/t", "$defs": {"t": {"$ref": "#/$defs/t"}}})


def test_many_optional_properties_are_no_trouble() -> None:
    schema = {"properties": {f"p{i}": {"type": "null"} for i in range(300)}}
    assert fits(schema, '{"p3":null,"p250":null}')
    assert not fits(schema, '{"p250":null,"p3":null}')
