"""OpenAI's responses become a chat: items, tools, formats, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.api.errors import ApiError
from mlxserver.api.responses_request import chat_body


def messages(*items: Any, **fields: Any) -> Any:
    return chat_body({"input": list(items), **fields})["messages"]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


HI = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


def test_a_text_is_one_message() -> None:
    assert chat_body({"input": "hi"})["messages"] == [HI]


def test_instructions_come_first() -> None:
    assert messages(instructions="Be brief.") == [{"role": "system", "content": "Be brief."}]
    assert messages(instructions=None) == [{"role": "system", "content": ""}]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_messages_of_every_role_hold_parts(role: str) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]
    item = {"type": "message", "role": role, "content": parts, "status": "completed"}
    image = {"type": "image_url", "image_url": {"url": "u"}}
    assert messages(item) == [{"role": role, "content": [text("a"), image]}]
    assert messages({"role": role, "content": "a"}) == [{"role": role, "content": [text("a")]}]


def test_all_that_an_answer_had_is_one_message() -> None:
    whole = {
        "role": "assistant",
        "content": [text("b")],
        "reasoning_content": "hm",
        "tool_calls": [CALLED, CALLED],
    }
    assert messages(THOUGHT, ANSWER, CALL, CALL) == [whole]
    assert messages(ANSWER, ANSWER)[0]["content"] == [text("b"), text("b")]
    assert messages(ANSWER | {"content": "b"})[0]["content"] == [text("b")]
    assert [m["role"] for m in messages(CALL, HI, CALL)] == ["assistant", "user", "assistant"]
    refusal = {"type": "refusal", "refusal": "no"}
    assert messages(ANSWER | {"content": [refusal]})[0]["content"] == [refusal]


def test_results_of_calls() -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
    assert messages(output) == [{"role": "tool", "tool_call_id": "c1", "content": "sunny"}]
    parts = [{"type": "input_text", "text": "sunny"}]
    assert messages(output | {"output": parts})[0]["content"] == [text("sunny")]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"foo": 1}, "Cannot determine type of 'item'"),
        (5, "Cannot determine type of 'item'"),
        ({"role": "assistant", "content": "x"}, "Cannot determine type of 'item'"),
        (CALL | {"call_id": None}, "Cannot determine type of 'item'"),
        ({"type": "function_call_output", "call_id": "c"}, "Cannot determine type of 'item'"),
        ({"role": "user", "content": [text("x")]}, "'type' must be one of 'input_text', "),
        ({"role": "user", "content": [5]}, "'type' must be one of 'input_text', "),
        ({"role": "user", "content": [{"type": "input_text"}]}, "'Input text' requires 'text'"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "'image_url' is required"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "'input_file' is not supported by llamacpp"),
        (ANSWER | {"content": [text("x")]}, "'type' must be one of 'output_text' or 'refusal'"),
        (ANSWER | {"content": [{"type": "output_text"}]}, "'Output text' requires 'text'"),
        (ANSWER | {"content": [{"type": "refusal"}]}, "'Refusal' requires 'refusal'"),
        (
            {"type": "function_call_output", "call_id": "c", "output": [text("x")]},
            "Output of tool call should be 'Input text'",
        ),
        ({"type": "reasoning", "summary": []}, "item['content'] is not an array"),
        (THOUGHT | {"content": []}, "item['content'] is empty"),
        (THOUGHT | {"content": [5]}, "item['content']['text'] is not a string"),
    ],
)
def test_items_that_are_none(item: Any, message: str) -> None:
    with pytest.raises(ApiError) as error:
        messages(item)
    assert error.value.status == 400
    assert error.value.message.startswith(message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'input' is required"),
        ([1], "'input' is required"),
        ({"input": 4}, "'input' must be a string or array of objects"),
        ({"input": None}, "'input' must be a string or array of objects"),
        ({"input": "a", "previous_response_id": "r"}, "llama.cpp does not support 'previous_response_id'."),
        ({"input": "a", "tools": {}}, "'tools' must be an array of objects"),
    ],
)
def test_requests_that_are_none(body: Any, message: str) -> None:
    with pytest.raises(ApiError) as error:
        chat_body(body)
    assert (error.value.status, error.value.message) == (400, message)


def test_functions_are_kept_of_the_tools() -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    body = chat_body({"input": "a", "tools": [{"type": "web_search"}, function, 5]})
    assert body["tools"] == [
        {"type": "function", "function": {"strict": True, "name": "f", "parameters": {}}}
    ]
    assert "tools" not in chat_body({"input": "a", "tools": [{"type": "web_search"}]})


def test_a_named_choice_has_the_chats_form() -> None:
    def choice(value: Any) -> Any:
        return chat_body({"input": "a", "tool_choice": value})["tool_choice"]

    assert choice({"type": "function", "name": "f"}) == {"type": "function", "function": {"name": "f"}}
    assert choice("required") == "required"


def test_limits_and_effort_have_other_names() -> None:
    body = chat_body({"input": "a", "max_output_tokens": 3, "reasoning": {"effort": "high"}, "seed": 1})
    assert body == {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 3,
        "reasoning_effort": "high",
        "seed": 1,
    }
    assert "reasoning" not in chat_body({"input": "a", "reasoning": None})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"type": "text"}, None),
        ({}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
            },
        ),
        ({"type": "yaml"}, {"type": "yaml"}),
    ],
)
def test_the_format_of_the_text(wanted: Any, found: Any) -> None:
    assert chat_body({"input": "a", "text": {"format": wanted}}).get("response_format") == found
