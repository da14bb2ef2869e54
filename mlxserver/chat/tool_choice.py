"""Which tools an answer may or must call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.formats.calls import Tools

TOOL_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``name``: the one function that must be called. ``allowed``: those that may be; ``None`` for all."""

    kind: str = "auto"
    name: str = ""
    allowed: frozenset[str] | None = None

    @property
    def needs_call(self) -> bool:
        return self.kind == "required"


def read_tool_choice(body: dict[str, Any], has_tools: bool, use_jinja: bool) -> ToolChoice:
    """Raises ``ChatError``. What is neither a text nor an object counts as absent, as in llama-server."""
    choice = body.get("tool_choice")
    if not use_jinja and has_tools:
        raise ChatError("tools param requires --jinja flag")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        found = _allowed_tools(choice)
    elif isinstance(choice, dict):
        found = ToolChoice("required", _function_name(choice))
    else:
        found = ToolChoice(choice if isinstance(choice, str) else "auto")
    if not use_jinja and found != ToolChoice():
        raise ChatError("tool_choice param requires --jinja flag")
    return found


def _allowed_tools(choice: dict[str, Any]) -> ToolChoice:
    """OpenAI's form for some of the functions, nested or flat."""
    listed = choice.get("allowed_tools", choice)
    tools = listed.get("tools") if isinstance(listed, dict) else None
    if not isinstance(tools, list) or not tools or listed.get("mode") not in ("auto", "required"):
        raise _invalid(choice)
    if not all(isinstance(tool, dict) for tool in tools):
        raise _invalid(choice)
    return ToolChoice(listed["mode"], allowed=frozenset(_function_name(tool) for tool in tools))


def _function_name(choice: dict[str, Any]) -> str:
    """OpenAI's form for one function, nested or flat."""
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type", "function") != "function" or not isinstance(name, str):
        raise _invalid(choice)
    return name


def _invalid(choice: dict[str, Any]) -> InvalidChat:
    return InvalidChat(f"Invalid tool_choice: {json.dumps(choice, ensure_ascii=False)}")


def check_tool_choice(choice: ToolChoice, tools: Sequence[dict[str, Any]]) -> None:
    if choice.kind not in TOOL_CHOICES:
        raise InvalidChat(f"Invalid tool_choice: {choice.kind}")
    known = {tool["function"]["name"] for tool in tools}
    for name in (choice.allowed or {choice.name}) - known - {""}:
        raise InvalidChat(f"Invalid tool_choice: there is no tool named {name}")


def callable_tools(choice: ToolChoice, tools: Sequence[dict[str, Any]], is_parallel: bool) -> Tools:
    """The functions that may be called."""
    functions = [tool["function"] for tool in tools]
    parameters = {
        function["name"]: function["parameters"]
        for function in functions
        if choice.name in ("", function["name"])
        and (choice.allowed is None or function["name"] in choice.allowed)
    }
    return Tools(parameters, is_parallel and not choice.name)
