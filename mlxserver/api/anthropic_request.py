"""Anthropic's messages as the chat request that OpenAI's form has for the same."""

from __future__ import annotations

import re
from typing import Any

from mlxserver.api.errors import RequestFault
from mlxserver.api.json_body import dump_json

DEFAULT_MAX_TOKENS = 4096
DEFAULT_THINKING_TOKENS = 10000
PASSED_ON = ("temperature", "top_p", "top_k", "stream", "chat_template_kwargs", "lora")
"""Fields of equal name and meaning; what is not named in this module is dropped, as in llama-server, which
drops ``lora`` too."""

_BILLING = "x-anthropic-billing-header:"
_CHECKSUM = re.compile(r"cch=.{5};", re.DOTALL)

Fields = dict[str, Any]


def chat_body(body: Any) -> Fields:
    """The chat request's body. Only missing messages are an error here; the chat's checks find the rest."""
    fields: Fields = body if isinstance(body, dict) else {}
    system = _system_message(fields.get("system"))
    if "messages" not in fields:
        raise RequestFault("'messages' is required")
    chat: Fields = {"messages": [*system, *_messages(fields["messages"])]}
    if isinstance(fields.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in fields["tools"]]
    chat |= _tool_choice(_object(fields, "tool_choice")) | _response_format(fields)
    if "stop_sequences" in fields:
        chat["stop"] = fields["stop_sequences"]
    chat["max_tokens"] = fields.get("max_tokens", DEFAULT_MAX_TOKENS)
    chat |= {name: fields[name] for name in PASSED_ON if name in fields}
    thinking = _object(fields, "thinking")
    if thinking.get("type") == "enabled":
        chat["thinking_budget_tokens"] = _thinking_tokens(thinking.get("budget_tokens"))
    return chat


def _system_message(system: Any) -> list[Fields]:
    if system is None:
        return []
    texts = [system] if isinstance(system, str) else _texts(system)
    return [{"role": "system", "content": "".join(_steady(text) for text in texts)}]


def _steady(text: str) -> str:
    """Without the checksum that Claude Code changes with each request: no stored prompt would fit again."""
    return _CHECKSUM.sub("cch=fffff;", text, count=1) if text.startswith(_BILLING) else text


def _messages(messages: Any) -> list[Fields]:
    found: list[Fields] = []
    for message in messages if isinstance(messages, list) else []:
        found += _message(message)
    return found


def _message(message: Any) -> list[Any]:
    """The message itself, if anything of it is left, then a message for each result of a tool in it."""
    fields: Fields = message if isinstance(message, dict) else {}
    if "content" not in fields and fields.get("role") == "assistant":
        return []
    if not isinstance(fields.get("content"), list):
        return [message]
    blocks = [block for block in fields["content"] if isinstance(block, dict)]
    parts = [part for block in blocks if (part := _part(block))]
    calls = [_tool_call(block) for block in blocks if block.get("type") == "tool_use"]
    thoughts = "".join(_text(block, "thinking") for block in blocks if block.get("type") == "thinking")
    results = [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
    if not (parts or calls or thoughts):
        return results
    turn: Fields = {"role": _text(fields, "role"), "content": parts or ""}
    if calls:
        turn["tool_calls"] = calls
    if thoughts:
        turn["reasoning_content"] = thoughts
    return [turn, *results]


def _part(block: Fields) -> Fields | None:
    if block.get("type") == "text":
        return block
    return _image(block) if block.get("type") == "image" else None


def _image(block: Fields) -> Fields:
    source = _object(block, "source")
    url = _text(source, "url")
    if source.get("type") == "base64":
        media_type = _text(source, "media_type", "image/jpeg")
        url = f"data:{media_type};base64,{_text(source, 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(block: Fields) -> Fields:
    function = {"name": _text(block, "name"), "arguments": dump_json(_object(block, "input"))}
    return {"id": _text(block, "id"), "type": "function", "function": function}


def _tool_result(block: Fields) -> Fields:
    """Texts become one; only images keep the form of a list."""
    content = block.get("content")
    result: Fields = {"role": "tool", "tool_call_id": _text(block, "tool_use_id")}
    if isinstance(content, str):
        return result | {"content": content}
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if any(part.get("type") == "image" for part in parts):
        texts_and_images = (_part(part) for part in parts)
        return result | {"content": [part for part in texts_and_images if part]}
    return result | {"content": "".join(_texts(parts))}


def _tool(tool: Any) -> Fields:
    fields: Fields = tool if isinstance(tool, dict) else {}
    function = {
        "name": _text(fields, "name"),
        "description": _text(fields, "description"),
        "parameters": fields.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: Fields) -> Fields:
    """llama-server takes ``none`` for ``auto``, and so does this."""
    found: Fields = {}
    match choice.get("type"):
        case "any":
            found["tool_choice"] = "required"
        case "tool":
            found["tool_choice"] = {"type": "function", "function": {"name": _text(choice, "name")}}
    if choice.get("disable_parallel_tool_use") is True:
        found["parallel_tool_calls"] = False
    return found


def _response_format(fields: Fields) -> Fields:
    """A JSON schema that ``output_config`` gives for the answer."""
    wanted = _object(_object(fields, "output_config"), "format")
    if not wanted:
        return {}
    schema = {"schema": wanted.get("schema")}
    return {"response_format": {"type": wanted.get("type"), "json_schema": schema}}


def _thinking_tokens(budget: Any) -> int:
    is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
    return int(budget) if is_number else DEFAULT_THINKING_TOKENS


def _texts(blocks: Any) -> list[str]:
    items = blocks if isinstance(blocks, list) else []
    return [_text(item, "text") for item in items if isinstance(item, dict) and item.get("type") == "text"]


def _text(fields: Fields, key: str, default: str = "") -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else default


def _object(fields: Fields, key: str) -> Fields:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}
