"""A chat's messages and tools, from a request's JSON to what templates see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlxserver.chat.errors import ChatError, InvalidChat

MEDIA = {"image_url": "image", "input_audio": "audio", "input_video": "video"}
"""Content part types that need a model which reads more than text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON text, as the model wrote it."""
    id: str = ""

    def json(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        call: dict[str, Any] = {"type": "function", "function": function}
        return {**call, "id": self.id} if self.id else call


@dataclass(frozen=True, slots=True)
class Message:
    """One message; either ``content`` or ``parts`` is empty."""

    role: str
    content: str = ""
    parts: tuple[str, ...] = ()
    """The texts of a content given as a list."""
    reasoning_content: str = ""
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def text(self, delimiter: str) -> str:
        """The content, with its non-empty parts joined."""
        if self.content:
            return self.content
        joined = ""
        for part in self.parts:
            joined += (delimiter if joined else "") + part
        return joined

    def json(self, takes_strings: bool = True, takes_parts: bool = False) -> dict[str, Any]:
        """What a template sees; content has the form that the template takes, its own if it takes both."""
        message: dict[str, Any] = {"role": self.role, "content": self._content(takes_strings, takes_parts)}
        optional = {
            "reasoning_content": self.reasoning_content,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [call.json() for call in self.tool_calls],
        }
        return {**message, **{key: value for key, value in optional.items() if value}}

    def _content(self, takes_strings: bool, takes_parts: bool) -> str | list[dict[str, str]]:
        as_parts = bool(self.parts) if takes_strings == takes_parts else takes_parts
        if not as_parts:
            return self.text("\n")
        texts = self.parts or (self.content,)
        return [{"type": "text", "text": text} for text in texts]


def check_messages(messages: Any, modalities: frozenset[str] = frozenset()) -> None:
    """llama-server's first look at ``messages``. ``modalities``: what the model reads besides text."""
    if not isinstance(messages, list):
        raise InvalidChat("Expected 'messages' to be an array")
    for message in messages:
        fields = message if isinstance(message, dict) else {}
        if "content" in fields:
            _check_content(fields["content"], modalities)
        elif fields.get("role") != "assistant":
            raise InvalidChat("All non-assistant messages must contain 'content'")
        elif "tool_calls" not in fields:
            raise InvalidChat("Assistant message must contain either 'content' or 'tool_calls'!")


def _check_content(content: Any, modalities: frozenset[str]) -> None:
    if isinstance(content, str) or content is None:
        return
    if not isinstance(content, list):
        raise InvalidChat("Expected 'content' to be a string or an array")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        medium = MEDIA.get(kind) if isinstance(kind, str) else None
        if medium and medium not in modalities:
            raise ChatError(
                f"{medium} input is not supported - hint: if this is unexpected, "
                "you may need to provide the mmproj"
            )
        if not medium and kind != "text":
            raise InvalidChat("unsupported content[].type")


def parse_messages(messages: list[Any]) -> list[Message]:
    """The messages of a checked list. What is still wrong with one is a server error, as in llama-server."""
    try:
        return [_parse_message(message) for message in messages]
    except _Malformed as error:
        raise ChatError(f"Failed to parse messages: {error}") from None


def parse_tools(tools: Any) -> list[dict[str, Any]]:
    """The function tools, in the one form that templates see."""
    if tools is None:
        return []
    try:
        if not isinstance(tools, list):
            raise _Malformed(f"Expected 'tools' to be an array, got {_dump(tools)}")
        return [_parse_tool(tool) for tool in tools]
    except _Malformed as error:
        shown = json.dumps(tools, ensure_ascii=False, indent=2)
        raise ChatError(f"Failed to parse tools: {error}; tools = {shown}") from None


def check_final_turn(messages: Sequence[Message]) -> None:
    """Only one message may be an answer that is to go on."""
    if len(messages) >= 2 and messages[-2].role == "assistant":
        raise InvalidChat("Cannot have 2 or more assistant messages at the end of the list.")


def trimmed(message: Message) -> Message:
    """``message`` without the white space around its texts."""
    return replace(
        message,
        content=message.content.strip(),
        reasoning_content=message.reasoning_content.strip(),
        parts=tuple(part.strip() for part in message.parts),
    )


class _Malformed(Exception):
    pass


def _parse_message(message: Any) -> Message:
    if not isinstance(message, dict):
        raise _Malformed(f"Expected 'message' to be an object, got {_dump(message)}")
    if "role" not in message:
        raise _Malformed(f"Missing 'role' in message: {_dump(message)}")
    content = message.get("content")
    return Message(
        role=_text(message["role"]),
        content=content if isinstance(content, str) else "",
        parts=tuple(_parse_part(part) for part in content) if isinstance(content, list) else (),
        tool_calls=_parse_calls(message["tool_calls"]) if "tool_calls" in message else (),
        reasoning_content=_text(message.get("reasoning_content", "")),
        name=_optional_text(message, "name"),
        tool_call_id=_optional_text(message, "tool_call_id"),
    )


def _parse_part(part: dict[str, Any]) -> str:
    if part["type"] not in ("text", "media_marker"):
        raise _Malformed(f"Unsupported content part type: {_dump(part['type'])}")
    return _text(_at(part, "text"))


def _parse_calls(calls: Any) -> tuple[ToolCall, ...]:
    """Raises ``InvalidChat``: what a client sends back must be as it was sent."""
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise InvalidChat(f"Expected 'tool_calls' to be an array, got {_dump(calls)}")
    try:
        return tuple(_parse_call(call) for call in calls)
    except _Malformed as error:
        raise InvalidChat(f"Failed to parse messages: {error}") from None


def _function_of(item: Any, what: str) -> Any:
    """The function of a tool or of a call of one, which ``what`` names in errors."""
    fields = item if isinstance(item, dict) else {}
    if "type" not in fields:
        raise _Malformed(f"Missing {what} type: {_dump(item)}")
    if fields["type"] != "function":
        raise _Malformed(f"Unsupported {what} type: {_dump(item)}")
    if "function" not in fields:
        raise _Malformed(f"Missing {what} function: {_dump(item)}")
    return fields["function"]


def _parse_call(call: Any) -> ToolCall:
    function = _function_of(call, "tool call")
    if not isinstance(function, dict) or "name" not in function:
        raise _Malformed(f"Missing tool call name: {_dump(call)}")
    arguments = _at(function, "arguments")
    text = arguments if isinstance(arguments, str) else _dump(arguments)
    return ToolCall(name=_text(function["name"]), arguments=text, id=_optional_text(call, "id"))


def _parse_tool(tool: Any) -> dict[str, Any]:
    function = _function_of(tool, "tool")
    shown = {
        "name": _text(_at(function, "name")),
        "description": _text(function.get("description", "")),
        "parameters": function.get("parameters", {}),
    }
    return {"type": "function", "function": shown}


def _at(value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        raise _Malformed(f"[json.exception.type_error.304] cannot use at() with {json_kind(value)}")
    if key not in value:
        raise _Malformed(f"[json.exception.out_of_range.403] key '{key}' not found")
    return value[key]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"[json.exception.type_error.302] type must be string, but is {json_kind(value)}")
    return value


def _optional_text(fields: dict[str, Any], key: str) -> str:
    """Null counts as absent: clients send it for what they do not set."""
    value = fields.get(key)
    return "" if value is None else _text(value)


def json_kind(value: Any) -> str:
    """The name that llama-server's JSON library has for the value's type."""
    names: dict[type, str] = {
        str: "string",
        bool: "boolean",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    return names.get(type(value), "number")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
