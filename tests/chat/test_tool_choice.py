"""Which tools an answer may or must call."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.tool_choice import ToolChoice, callable_tools, check_tool_choice, read_tool_choice

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]


def read(choice: Any, use_jinja: bool = True) -> ToolChoice:
    return read_tool_choice({"tool_choice": choice}, False, use_jinja)


def test_words_are_kinds_and_objects_name_a_function() -> None:
    assert read("none") == ToolChoice("none")
    assert read({"type": "function", "function": {"name": "f"}}) == ToolChoice("required", "f")
    assert read({"type": "function", "name": "f"}) == ToolChoice("required", "f")
    for absent in (None, 5, True, ["f"]):
        assert read(absent) == ToolChoice("auto")


def test_some_of_the_functions_may_be_allowed() -> None:
    nested = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    flat = {"mode": "auto", "tools": [{"type": "function", "name": "f"}]}
    required = read({"type": "allowed_tools", "allowed_tools": nested})
    auto = read({"type": "allowed_tools", **flat})
    assert (required.kind, auto.kind) == ("required", "auto")
    assert list(callable_tools(required, TOOLS, is_parallel=True).parameters) == ["g"]
    assert list(callable_tools(auto, TOOLS, is_parallel=True).parameters) == ["f"]
    assert callable_tools(auto, TOOLS, is_parallel=True).is_parallel
    check_tool_choice(auto, TOOLS)
    with pytest.raises(InvalidChat, match="no tool named g"):
        check_tool_choice(required, TOOLS[:1])
    for broken in ({}, {**flat, "mode": "x"}, {**flat, "tools": []}, {**flat, "tools": ["f"]}):
        with pytest.raises(InvalidChat, match="Invalid tool_choice"):
            read({"type": "allowed_tools", **broken})


@pytest.mark.parametrize("choice", [{}, {"type": "x", "name": "f"}, {"type": "function", "function": 1}])
def test_an_object_that_names_none_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidChat, match="Invalid tool_choice"):
        read(choice)


def test_without_jinja_only_auto_is_possible() -> None:
    assert read("auto", use_jinja=False) == ToolChoice()
    with pytest.raises(ChatError, match="requires --jinja"):
        read({"name": "f"}, use_jinja=False)


def test_only_a_known_function_can_be_named() -> None:
    check_tool_choice(ToolChoice("required", "f"), TOOLS)
    for choice in (ToolChoice("required", "h"), ToolChoice("sometimes")):
        with pytest.raises(InvalidChat, match="Invalid tool_choice"):
            check_tool_choice(choice, TOOLS)


def test_a_named_function_is_the_only_one_and_called_once() -> None:
    tools = callable_tools(ToolChoice("required", "g"), TOOLS, is_parallel=True)
    assert (list(tools.parameters), tools.is_parallel) == (["g"], False)
    assert list(callable_tools(ToolChoice(), TOOLS, is_parallel=True).parameters) == ["f", "g"]
