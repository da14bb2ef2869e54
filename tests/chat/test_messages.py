"""Messages from a request: what is refused, in which words, and what templates see."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.messages import Message, check_messages, parse_messages, parse_tools


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        (None, InvalidChat, "Expected 'messages' to be an array"),
        (["x"], InvalidChat, "All non-assistant messages must contain 'content'"),
        ([{"role": "user"}], InvalidChat, "All non-assistant messages must contain 'content'"),
        (
            [{"role": "assistant"}],
            InvalidChat,
            "Assistant message must contain either 'content' or 'tool_calls'!",
        ),
        (
            [{"role": "user", "content": {"a": 1}}],
            InvalidChat,
            "Expected 'content' to be a string or an array",
        ),
        ([{"role": "user", "content": [{"type": ["x"]}]}], InvalidChat, "unsupported content[].type"),
        ([{"role": "user", "content": ["x"]}], InvalidChat, "unsupported content[].type"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            ChatError,
            "audio input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        ),
    ],
)
def test_what_the_first_look_refuses(messages: Any, error: type[ChatError], text: str) -> None:
    with pytest.raises(ChatError) as raised:
        check_messages(messages)
    assert (type(raised.value), str(raised.value)) == (error, text)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "x"}, 'Missing \'role\' in message: {"content":"x"}'),
        (
            {"role": 3, "content": "x"},
            "[json.exception.type_error.302] type must be string, but is number",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "[json.exception.out_of_range.403] key 'text' not found",
        ),
    ],
)
def test_what_is_malformed_further_in(message: Any, text: str) -> None:
    with pytest.raises(ChatError) as raised:
        parse_messages([message])
    assert str(raised.value) == f"Failed to parse messages: {text}"
    assert raised.value.type == "server_error"


@pytest.mark.parametrize(
    "calls", [[{"type": "x"}], [{"type": "function", "function": {"name": "f"}}], ["f"], {"a": 1}, "f", 5]
)
def test_malformed_tool_calls_are_the_clients_fault(calls: Any) -> None:
    with pytest.raises(InvalidChat):
        parse_messages([{"role": "assistant", "tool_calls": calls}])


def test_null_ids_and_names_count_as_absent() -> None:
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    fields = {"role": "assistant", "content": None, "name": None, "tool_call_id": None, "tool_calls": [call]}
    [message] = parse_messages([fields])
    assert (message.name, message.tool_call_id, message.tool_calls[0].id) == ("", "", "")
    with pytest.raises(ChatError):
        parse_messages([{"role": "assistant", "content": "", "reasoning_content": None}])


def test_tools_are_reduced_to_what_templates_know() -> None:
    tool = {"type": "function", "extra": 1, "function": {"name": "f", "strict": True}}
    expected = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
    assert parse_tools([tool]) == [expected]
    assert parse_tools(None) == []


def test_a_bad_tool_list_is_shown_back() -> None:
    with pytest.raises(ChatError) as raised:
        parse_tools({"a": 1})
    assert str(raised.value) == (
        'Failed to parse tools: Expected \'tools\' to be an array, got {"a":1}; tools = {\n  "a": 1\n}'
    )


def test_content_takes_the_form_that_the_template_takes() -> None:
    text = Message("user", "a")
    parts = Message("user", parts=("a", "b"))
    assert parts.json(takes_strings=True)["content"] == "a\nb"
    assert text.json(takes_strings=False, takes_parts=True)["content"] == [{"type": "text", "text": "a"}]
    both = parts.json(takes_strings=True, takes_parts=True)["content"]
    assert both == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text.json(takes_strings=True, takes_parts=True)["content"] == "a"


def test_null_content_is_empty_text() -> None:
    [message] = parse_messages([{"role": "user", "content": None}])
    assert message.json() == {"role": "user", "content": ""}


def test_a_tool_call_keeps_its_arguments_as_text() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": 1}}}
    [message] = parse_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message.json()["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}, "id": "1"}
    ]
