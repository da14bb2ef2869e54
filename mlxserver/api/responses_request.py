"""OpenAI's responses as the chat request that asks for the same."""

from __future__ import annotations

import logging
from typing import Any

from mlxserver.api.errors import invalid_request

Fields = dict[str, Any]

TRANSLATED = ("input", "instructions", "tools", "tool_choice", "max_output_tokens", "reasoning", "text")
"""Fields of the chat request that have another name or form here; all others are passed on."""

_ROLES = ("user", "system", "developer")
log = logging.getLogger("mlxserver.srv")


def chat_body(body: Any) -> Fields:
    """The chat request's body. Raises ``ApiError`` with llama-server's texts."""
    fields: Fields = body if isinstance(body, dict) else {}
    if "input" not in fields:
        raise invalid_request("'input' is required")
    if _text(fields, "previous_response_id"):
        raise invalid_request("llama.cpp does not support 'previous_response_id'.")
    chat = {name: value for name, value in fields.items() if name not in TRANSLATED}
    chat["messages"] = _instructions(fields) + _messages(fields["input"])
    if "tools" in fields and (tools := _tools(fields["tools"])):
        chat["tools"] = tools
    if "tool_choice" in fields:
        chat["tool_choice"] = _tool_choice(fields["tool_choice"])
    if "max_output_tokens" in fields:
        chat["max_tokens"] = fields["max_output_tokens"]
    if "effort" in (reasoning := _object(fields, "reasoning")):
        chat["reasoning_effort"] = reasoning["effort"]
    return chat | _response_format(fields)


def _instructions(fields: Fields) -> list[Fields]:
    if "instructions" not in fields:
        return []
    return [{"role": "system", "content": _text(fields, "instructions")}]


def _messages(value: Any) -> list[Fields]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid_request("'input' must be a string or array of objects")
    messages: list[Fields] = []
    for item in value:
        _add_item(messages, item if isinstance(item, dict) else {})
    return messages


def _add_item(messages: list[Fields], item: Fields) -> None:
    """What belongs to an answer joins the answer before it; everything else is a message of its own."""
    kind, role = item.get("type"), item.get("role")
    if isinstance(item.get("content"), str):
        item = item | {"content": [{"type": "input_text", "text": item["content"]}]}
    if isinstance(item.get("content"), list) and isinstance(role, str) and role in _ROLES:
        others = {name: value for name, value in item.items() if name not in ("type", "status")}
        messages.append(others | {"content": [_input_part(part) for part in item["content"]]})
    elif kind == "message" and role == "assistant":
        parts = [_output_part(part) for part in _list(item, "content")]
        _extend(_answer(messages), "content", parts)
    elif kind == "function_call" and _are_texts(item, "arguments", "call_id", "name"):
        _extend(_answer(messages), "tool_calls", [_tool_call(item)])
    elif kind == "function_call_output" and _are_texts(item, "call_id") and _is_output(item.get("output")):
        messages.append(_tool_result(item))
    elif kind == "reasoning" and isinstance(item.get("summary"), list):
        _answer(messages)["reasoning_content"] = _reasoning(item)
    else:
        raise invalid_request("Cannot determine type of 'item'")


def _answer(messages: list[Fields]) -> Fields:
    """The answer that the conversation ends with; a new one if it ends with something else."""
    if not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant", "content": []})
    return messages[-1]


def _extend(message: Fields, key: str, items: list[Fields]) -> None:
    message[key] = message.get(key, []) + items


def _input_part(part: Any) -> Fields:
    fields: Fields = part if isinstance(part, dict) else {}
    match fields.get("type"):
        case "input_text":
            if "text" not in fields:
                raise invalid_request("'Input text' requires 'text'")
            return {"type": "text", "text": fields["text"]}
        case "input_image":
            if "image_url" not in fields:
                raise invalid_request("'image_url' is required")
            return {"type": "image_url", "image_url": {"url": fields["image_url"]}}
        case "input_file":
            raise invalid_request("'input_file' is not supported by llamacpp at this moment")
    raise invalid_request("'type' must be one of 'input_text', 'input_image', or 'input_file'")


def _output_part(part: Any) -> Fields:
    fields: Fields = part if isinstance(part, dict) else {}
    match fields.get("type"):
        case "output_text" | "input_text":
            if not isinstance(fields.get("text"), str):
                raise invalid_request("'Output text' requires 'text'")
            return {"type": "text", "text": fields["text"]}
        case "refusal":
            if not isinstance(fields.get("refusal"), str):
                raise invalid_request("'Refusal' requires 'refusal'")
            return {"type": "refusal", "refusal": fields["refusal"]}
    raise invalid_request("'type' must be one of 'output_text' or 'refusal'")


def _tool_call(item: Fields) -> Fields:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _is_output(output: Any) -> bool:
    return isinstance(output, str | list)


def _tool_result(item: Fields) -> Fields:
    output = item["output"]
    content = output if isinstance(output, str) else [_result_part(part) for part in output]
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content}


def _result_part(part: Any) -> Fields:
    if not isinstance(part, dict) or part.get("type") != "input_text":
        raise invalid_request("Output of tool call should be 'Input text'")
    return part | {"type": "text"}


def _reasoning(item: Fields) -> str:
    content = item.get("content")
    if not isinstance(content, list):
        raise invalid_request("item['content'] is not an array")
    if not content:
        raise invalid_request("item['content'] is empty")
    first = content[0]
    if not isinstance(first, dict) or not isinstance(first.get("text"), str):
        raise invalid_request("item['content']['text'] is not a string")
    text: str = first["text"]
    return text


def _tools(tools: Any) -> list[Fields]:
    """The functions among them; the others are OpenAI's own services, which no chat has."""
    if not isinstance(tools, list):
        raise invalid_request("'tools' must be an array of objects")
    return [function for tool in tools if (function := _function(tool))]


def _function(tool: Any) -> Fields | None:
    fields: Fields = tool if isinstance(tool, dict) else {}
    if fields.get("type") != "function":
        log.warning("unsupported Responses tool type %.40r skipped", _text(fields, "type"))
        return None
    described = {name: value for name, value in fields.items() if name != "type"}
    return {"type": "function", "function": {"strict": True} | described}


def _tool_choice(choice: Any) -> Any:
    """A named function has its name one level deeper in a chat."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _response_format(fields: Fields) -> Fields:
    """What ``text.format`` asks for, in the form that ``response_format`` has in a chat."""
    wanted = _object(_object(fields, "text"), "format")
    match wanted.get("type"):
        case None | "text":
            return {}
        case "json_schema":
            schema = {name: value for name, value in wanted.items() if name != "type"}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": wanted}


def _are_texts(item: Fields, *names: str) -> bool:
    return all(isinstance(item.get(name), str) for name in names)


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def _list(fields: Fields, key: str) -> list[Any]:
    value = fields.get(key)
    return value if isinstance(value, list) else []


def _object(fields: Fields, key: str) -> Fields:
    value = fields.get(key)
    return value if isinstance(value, dict) else {}
