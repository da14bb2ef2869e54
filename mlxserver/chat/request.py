"""A chat request as a completion request: its prompt, and the fields that the chat decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.messages import Message, check_final_turn, check_messages, parse_messages, parse_tools
from mlxserver.chat.template import Chat, ChatTemplate, Continuation, Prompt

TOOL_CHOICES = ("auto", "none", "required")
CHAT_FORMATS = ("Content-only", "peg-simple", "peg-native", "peg-gemma4", "peg-minimax-m3")
"""llama.cpp's answer parsers; requests name one by its index."""
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What the command line says about chats."""

    use_jinja: bool = True
    prefill_assistant: bool = True
    enable_thinking: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)
    modalities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``fields`` is the body of the native completion request that answers it."""

    prompt: Prompt
    fields: dict[str, Any]
    unmet: tuple[str, ...] = ()
    """What the answer would need that is not implemented yet."""


def parse_chat(body: Any, template: ChatTemplate, settings: ChatSettings) -> ChatRequest:
    """Checks in llama-server's order. Raises ``ChatError`` with its type and text."""
    fields: dict[str, Any] = body if isinstance(body, dict) else {}
    tool_choice = _tool_choice(fields, settings)
    schema = _schema(fields)
    if "messages" not in fields:
        raise InvalidChat("'messages' is required")
    check_messages(fields["messages"], settings.modalities)
    messages = tuple(parse_messages(fields["messages"]))
    tools = tuple(parse_tools(fields.get("tools")))
    if tool_choice not in TOOL_CHOICES:
        raise InvalidChat(f"Invalid tool_choice: {tool_choice}")
    continuation, adds_generation_prompt = _continuation(fields, messages, settings)
    _check_reasoning_format(fields)
    calls_tools = bool(tools) and tool_choice != "none"
    if calls_tools and "grammar" in fields:
        raise InvalidChat("Cannot use custom grammar constraints with tools.")
    kwargs, thinks = _thinking(fields, settings)
    chat = Chat(messages, tools, adds_generation_prompt, continuation, thinks, kwargs)
    prompt = template.render(chat)
    completion = _completion_fields(fields, template, prompt) | _probabilities(fields)
    unmet = _unmet(template, schema, calls_tools) + _unmet_reasoning(template, fields)
    return ChatRequest(prompt, fields | completion, unmet)


def _tool_choice(body: dict[str, Any], settings: ChatSettings) -> str:
    choice = _text(body, "tool_choice", "auto")
    if not settings.use_jinja and _has_tools(body):
        raise ChatError("tools param requires --jinja flag")
    if not settings.use_jinja and choice != "auto":
        raise ChatError("tool_choice param requires --jinja flag")
    return choice


def _schema(body: dict[str, Any]) -> Any:
    """The JSON schema of the answer; ``None`` where nothing asks for one."""
    schema = body.get("json_schema")
    if schema is not None and _text(body, "grammar", ""):
        raise ChatError("Cannot use both json_schema and grammar")
    response_format = _object(body, "response_format")
    kind = _text(response_format, "type", "")
    if kind == "json_object":
        return _object(response_format, "schema") if "schema" in response_format or not schema else schema
    if kind == "json_schema":
        return _object(_object(response_format, "json_schema"), "schema")
    if kind not in ("", "text"):
        raise InvalidChat(f'response_format type must be one of "text" or "json_object", but got: {kind}')
    return schema


def _continuation(
    body: dict[str, Any], messages: tuple[Message, ...], settings: ChatSettings
) -> tuple[Continuation, bool]:
    """(how the last message is gone on with, whether a generation prompt is added)."""
    adds_generation_prompt = _flag(body, "add_generation_prompt", True)
    asked = body.get("continue_final_message")
    if asked is True or asked in ("content", "reasoning_content"):
        if adds_generation_prompt:
            raise InvalidChat("Cannot set both add_generation_prompt and continue_final_message to true.")
        return ("auto" if asked is True else asked), False
    if settings.prefill_assistant and messages and messages[-1].role == "assistant":
        check_final_turn(messages)
        return "auto", False
    return "", adds_generation_prompt


def _check_reasoning_format(body: dict[str, Any]) -> None:
    if "reasoning_format" not in body:
        return
    name = body["reasoning_format"]
    if not isinstance(name, str):
        raise ChatError("[json.exception.type_error.302] type must be string")
    if name not in REASONING_FORMATS:
        raise ChatError(f"Unknown reasoning format: {name}")


def _thinking(body: dict[str, Any], settings: ChatSettings) -> tuple[dict[str, Any], bool]:
    """(the template's kwargs, whether the model is to think)."""
    kwargs = settings.kwargs | _object(body, "chat_template_kwargs")
    asked = kwargs.get("enable_thinking")
    if isinstance(asked, str):
        raise InvalidChat('invalid type for "enable_thinking" (expected boolean, got string)')
    thinks = asked if isinstance(asked, bool) else settings.enable_thinking
    effort = _text(body, "reasoning_effort", "")
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        return kwargs, False
    return (kwargs | {"reasoning_effort": effort} if effort else kwargs), thinks


def _completion_fields(body: dict[str, Any], template: ChatTemplate, prompt: Prompt) -> dict[str, Any]:
    stop = body.get("stop")
    return {
        "stop": [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else [],
        "prompt": prompt.text,
        "chat_format": CHAT_FORMATS.index(template.format),
        "generation_prompt": prompt.generation_prompt,
        "grammar_lazy": False,
        "grammar_triggers": [],
        "preserved_tokens": [],
    }


def _probabilities(body: dict[str, Any]) -> dict[str, Any]:
    if _flag(body, "logprobs", False):
        if _has_tools(body) and _flag(body, "stream", False):
            raise InvalidChat("logprobs is not supported with tools + stream")
        top = body.get("top_logprobs")
        return {"n_probs": int(top) if isinstance(top, int | float) else 20}
    if body.get("top_logprobs") is not None:
        raise InvalidChat("top_logprobs requires logprobs to be set to true")
    return {}


def _unmet(template: ChatTemplate, schema: Any, calls_tools: bool) -> tuple[str, ...]:
    """A jinja template's empty schema, and tools that a template cannot show, ask for nothing."""
    is_constrained = schema is not None if template.format == "Content-only" else _is_filled(schema)
    needs_tools = calls_tools and template.capabilities.supports_tools
    needs = {"response_format": is_constrained, "tools": needs_tools}
    return tuple(name for name, is_needed in needs.items() if is_needed)


def _unmet_reasoning(template: ChatTemplate, body: dict[str, Any]) -> tuple[str, ...]:
    """A template that does not think has no reasoning to bound."""
    if not template.supports_thinking:
        return ()
    budgets = [
        name
        for name in ("reasoning_budget_tokens", "thinking_budget_tokens")
        if isinstance(body.get(name), int | float) and body[name] >= 0
    ]
    return (*budgets, *(("reasoning_control",) if body.get("reasoning_control") is True else ()))


def _is_filled(schema: Any) -> bool:
    return isinstance(schema, dict) and bool(schema)


def _has_tools(body: dict[str, Any]) -> bool:
    return isinstance(body.get("tools"), list) and bool(body["tools"])


def _text(body: dict[str, Any], key: str, default: str) -> str:
    value = body.get(key)
    return value if isinstance(value, str) else default


def _flag(body: dict[str, Any], key: str, default: bool) -> bool:
    value = body.get(key)
    return value if isinstance(value, bool) else default


def _object(body: dict[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    return value if isinstance(value, dict) else {}
