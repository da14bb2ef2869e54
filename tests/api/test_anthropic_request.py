"""Anthropic's messages become a chat: roles, blocks, tools, thinking, and what is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.api.anthropic_request import chat_body
from mlxserver.api.errors import ApiError


def messages(*turns: dict[str, Any], **fields: Any) -> Any:
    return chat_body({"messages": list(turns), **fields})["messages"]


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


HI = {"role": "user", "content": "hi"}


def test_plain_messages_stay_as_they_are() -> None:
    assert messages(HI, user(text("a"), text("b"))) == [HI, user(text("a"), text("b"))]


@pytest.mark.parametrize(
    ("system", "shown"),
    [("Be brief.", "Be brief."), ([text("Be "), {"type": "x"}, text("brief.")], "Be brief.")],
)
def test_the_system_text_comes_first(system: Any, shown: str) -> None:
    assert messages(HI, system=system) == [{"role": "system", "content": shown}, HI]
    assert messages(HI, system=None) == [HI]


def test_the_checksum_of_a_client_does_not_spoil_the_cache() -> None:
    head = "x-anthropic-billing-header: cc_version=2.1; cch="
    [system, _] = messages(HI, system=[text(head + "a5145;You are"), text("cch=12345;")])
    assert system["content"] == head + "fffff;You arecch=12345;"
    [system, _] = messages(HI, system="Say cch=a5145;")
    assert system["content"] == "Say cch=a5145;"


def test_thoughts_and_calls_belong_to_their_turn() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, "é"]}}
    [turn] = messages(assistant(thought, text("ok"), call))
    function = {"name": "f", "arguments": '{"a":[1,"é"]}'}
    assert turn == {
        "role": "assistant",
        "content": [text("ok")],
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        "reasoning_content": "hm",
    }
    [turn] = messages(assistant({**call, "id": None, "input": None}))
    assert (turn["content"], turn["tool_calls"][0]["id"]) == ("", "")
    assert turn["tool_calls"][0]["function"]["arguments"] == "{}"


def test_results_of_tools_are_messages_behind_their_turn() -> None:
    first = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    second = {"type": "tool_result", "tool_use_id": "t2", "content": [text("ra"), text("in")]}
    third = {"type": "tool_result", "tool_use_id": None}
    assert messages(user(first, text("And now?"), second, third)) == [
        user(text("And now?")),
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "t2", "content": "rain"},
        {"role": "tool", "tool_call_id": "", "content": ""},
    ]
    assert [turn["role"] for turn in messages(user(first))] == ["tool"]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
        ({"type": "base64", "data": "AAAA"}, "data:image/jpeg;base64,AAAA"),
        ({"type": "url", "url": "http://x/y.png"}, "http://x/y.png"),
        ({"type": "file", "file_id": "f"}, ""),
    ],
)
def test_images_are_passed_on_for_the_chat_to_judge(source: dict[str, Any], url: str) -> None:
    image, part = {"type": "image", "source": source}, {"type": "image_url", "image_url": {"url": url}}
    assert messages(user(image)) == [user(part)]
    shot = {"type": "tool_result", "tool_use_id": "t", "content": [text("see"), image]}
    assert messages(user(shot))[0]["content"] == [text("see"), part]


def test_what_is_no_known_block_is_left_out() -> None:
    assert messages(user(text("a"), {"type": "document"}, 5)) == [user(text("a"))]  # type: ignore[arg-type]
    assert messages(user(), assistant({"type": "x"}), {"role": "assistant"}, HI) == [HI]
    assert chat_body({"messages": "x"})["messages"] == []
    assert chat_body({"messages": [5, {"role": "user"}]})["messages"] == [5, {"role": "user"}]


def test_tools() -> None:
    schema = {"type": "object"}
    given = [{"name": "f", "description": "d", "input_schema": schema}, {"name": "g"}]
    assert chat_body({"messages": [], "tools": given})["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}},
    ]
    assert "tools" not in chat_body({"messages": [], "tools": {}})


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, None),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "none"}, None),
        ({"type": ["any"]}, None),
        ("any", None),
        (None, None),
    ],
)
def test_tool_choices(choice: Any, wanted: Any) -> None:
    body = chat_body({"messages": [], "tool_choice": choice})
    assert (body.get("tool_choice"), "parallel_tool_calls" in body) == (wanted, False)


def test_one_call_at_a_time() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert chat_body({"messages": [], "tool_choice": choice})["parallel_tool_calls"] is False


def test_a_schema_for_the_answer() -> None:
    schema = {"type": "object"}
    wanted = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    found = chat_body({"messages": [], "output_config": wanted})["response_format"]
    assert found == {"type": "json_schema", "json_schema": {"schema": schema}}
    assert "response_format" not in chat_body({"messages": [], "output_config": {"effort": "low"}})


@pytest.mark.parametrize(
    ("thinking", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 5}, 5),
        ({"type": "enabled", "budget_tokens": 5.9}, 5),
        ({"type": "enabled"}, 10000),
        ({"type": "enabled", "budget_tokens": "x"}, 10000),
        ({"type": "disabled", "budget_tokens": 5}, None),
        ("enabled", None),
    ],
)
def test_thinking(thinking: Any, budget: int | None) -> None:
    assert chat_body({"messages": [], "thinking": thinking}).get("thinking_budget_tokens") == budget


def test_only_known_fields_are_passed_on() -> None:
    passed = {"temperature": 0, "top_p": 1, "top_k": 2, "stream": True, "chat_template_kwargs": {"a": 1}}
    dropped = {"seed": 1, "n_predict": 2, "grammar": "x", "cache_prompt": False, "metadata": {"user_id": "u"}}
    body = chat_body({"messages": [], "stop_sequences": ["x"], **passed, **dropped})
    assert body == {"messages": [], "stop": ["x"], "max_tokens": 4096, **passed}
    assert chat_body({"messages": [], "max_tokens": 3})["max_tokens"] == 3


@pytest.mark.parametrize("body", [{}, [1], "x", None])
def test_messages_are_required(body: Any) -> None:
    with pytest.raises(ApiError, match="'messages' is required") as error:
        chat_body(body)
    assert error.value.status == 500
