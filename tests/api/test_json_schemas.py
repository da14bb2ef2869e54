"""The JSON schemas of requests: types and limits from the readers, defaults from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from mlxserver.api.completion_schema import FIELDS
from mlxserver.api.field_rows import FieldRow
from mlxserver.api.json_schemas import components, object_schema

SCHEMAS = components({"top_k": 7, "stop": ["x"], "chat_format": "Content-only"})


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMAS[name]["properties"]
    return found


def row(name: str, **schema: Any) -> FieldRow:
    return FieldRow((name,), "x", "response", "honoured", "", False, "", schema)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_every_field_of_a_completion_is_described_with_its_type() -> None:
    described = properties("completion_body")
    for field in FIELDS:
        for name in field.names:
            assert described[name]["type"], name


def test_limits_are_those_that_refuse() -> None:
    described = properties("completion_body")
    assert (described["adaptive_decay"]["minimum"], described["adaptive_decay"]["maximum"]) == (0.0, 0.99)
    assert described["n_predict"]["minimum"] == -1
    assert "maximum" not in described["top_p"]


def test_defaults_that_fit() -> None:
    described = properties("completion_body")
    assert (described["top_k"]["default"], described["stop"]["default"]) == (7, ["x"])
    assert "default" not in described["chat_format"]


def test_chats_take_the_fields_of_completions_but_for_the_prompt() -> None:
    chat, native = properties("chat_body"), properties("completion_body")
    assert native.keys() - chat.keys() == {"prompt"}
    assert (chat["logprobs"]["type"], native["logprobs"]["type"]) == ("boolean", "integer")
    assert SCHEMAS["chat_body"]["required"] == ["messages"]
    assert SCHEMAS["responses_body"]["required"] == ["input"]


def test_a_path_goes_through_arrays_and_objects() -> None:
    rows = [row("a", type="array"), row("a/b", type=["object", "array"]), row("a/b/c", type="string")]
    inner = {"type": "object", "properties": {"c": {"type": "string"}}}
    assert object_schema(rows)["properties"]["a"]["items"]["properties"]["b"] == {
        "type": ["object", "array"],
        "properties": inner["properties"],
        "items": inner,
    }


def test_the_row_of_the_whole() -> None:
    assert object_schema([row("", type="array"), row("a", type="string")]) == {
        "type": "array",
        "items": {"type": "object", "properties": {"a": {"type": "string"}}},
    }
