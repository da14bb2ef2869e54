"""A chat request as a completion request: its prompt, and the fields that the chat decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.formats.calls import CallFormat
from mlxserver.chat.formats.json_answer import JsonAnswer
from mlxserver.chat.formats.registry import GENERIC
from mlxserver.chat.messages import (
    Message,
    check_final_turn,
    check_messages,
    json_kind,
    parse_messages,
    parse_tools,
)
from mlxserver.chat.reasoning_tags import ReasoningTags
from mlxserver.chat.template import AnswerForm, Chat, ChatTemplate, Continuation, Prompt
from mlxserver.chat.tool_choice import ToolChoice, callable_tools, check_tool_choice, read_tool_choice
from mlxserver.chat.tool_grammar import (
    Thought,
    json_grammar,
    lazy_grammar,
    required_grammar,
    with_tools_described,
)
from mlxserver.sampling.grammar.schema import SchemaError

CHAT_FORMATS = ("Content-only", "peg-simple", "peg-native", "peg-gemma4", "peg-minimax-m3")
"""llama.cpp's answer parsers; requests name one by its index."""
REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")
TRIGGER_WORD = 1
_NO_PARSER = "Unable to generate parser for this template. Automatic parser generation failed"


def _no_special_token(text: str) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What the command line and the model say about chats."""

    use_jinja: bool = True
    prefill_assistant: bool = True
    enable_thinking: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)
    modalities: frozenset[str] = frozenset()
    reasoning_format: str = "deepseek"
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    parses_answers: bool = True
    special_token: Callable[[str], int | None] = _no_special_token
    """The token that a text is, if it is a special one."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``fields`` is the body of the native completion request that answers it."""

    prompt: Prompt
    fields: dict[str, Any]
    rules: AnswerRules = AnswerRules()
    """How the answer's text is read."""


def parse_chat(body: Any, template: ChatTemplate, settings: ChatSettings) -> ChatRequest:
    """Checks in llama-server's order. Raises ``ChatError`` with its type and text."""
    fields: dict[str, Any] = body if isinstance(body, dict) else {}
    choice = read_tool_choice(fields, _has_tools(fields), settings.use_jinja)
    schema = _schema(fields)
    if "messages" not in fields:
        raise InvalidChat("'messages' is required")
    check_messages(fields["messages"], settings.modalities)
    messages = tuple(parse_messages(fields["messages"]))
    tools = tuple(parse_tools(fields.get("tools")))
    check_tool_choice(choice, tools)
    continuation, adds_generation_prompt = _continuation(fields, messages, settings)
    _check_reasoning_format(fields)
    calls_tools = bool(tools) and choice.kind != "none"
    if calls_tools and "grammar" in fields:
        raise InvalidChat("Cannot use custom grammar constraints with tools.")
    kwargs, thinks = _thinking(fields, settings)
    if calls_tools and choice.needs_call and not template.capabilities.supports_tools:
        messages = with_tools_described(messages, tools)
    chat = Chat(messages, tools, adds_generation_prompt, continuation, thinks, kwargs)
    prompt = template.render(chat)
    answer = _Answer(template, chat, prompt, choice, fields, settings)
    if _is_filled(schema) and not choice.needs_call:
        answer.expect_json()
    completion = _completion_fields(fields, template, prompt) | _probabilities(fields)
    completion |= answer.budget_fields() | (answer.call_fields() if settings.parses_answers else {})
    has_other_form = calls_tools or bool(_text(fields, "grammar", ""))
    if schema is not None and not choice.needs_call and (_is_filled(schema) or not has_other_form):
        completion |= answer.schema_fields(schema)
    return ChatRequest(prompt, fields | completion, answer.rules())


class _Answer:
    """How the answer of one request is read, and what keeps it to its form."""

    def __init__(
        self,
        template: ChatTemplate,
        chat: Chat,
        prompt: Prompt,
        choice: ToolChoice,
        body: dict[str, Any],
        settings: ChatSettings,
    ) -> None:
        self._form: AnswerForm = template.answer_form(bool(chat.tools))
        self._json: JsonAnswer | None = None
        self._is_jinja = template.format != "Content-only"
        self._prompt = prompt
        self._choice = choice
        self._body = body
        self._settings = settings
        self._thinks = chat.enable_thinking
        self._shows_reasoning = _reasoning_format(body, settings) != "none"
        is_parallel = _flag(body, "parallel_tool_calls", template.capabilities.supports_parallel_tool_calls)
        self.tools = replace(
            callable_tools(choice, chat.tools, is_parallel), shows_reasoning=self._shows_reasoning
        )
        self.calls = self._call_format() if chat.tools and choice.kind != "none" else None

    def _call_format(self) -> CallFormat | None:
        if self._form.family is not None:
            return self._form.family.calls
        return GENERIC.calls if self._choice.needs_call else None

    def expect_json(self) -> None:
        """The answer is JSON in place of calls. Thoughts that stay in the content hide where it begins."""
        self.calls = None
        is_read = self._settings.parses_answers and self._is_jinja
        if is_read and (self._shows_reasoning or not self._form.tags):
            self._json = JsonAnswer()

    def rules(self) -> AnswerRules:
        is_explicit = _is_continued(self._body)
        start = self._prompt.answer_start
        if not self._settings.parses_answers:
            return AnswerRules(self._prompt.prefill, not is_explicit)
        family, tags = self._form.family, self._form.tags
        plain = family.without_calls if family is not None else None
        parses_calls = _flag(self._body, "parse_tool_calls", True)
        calls = self._json or (self.calls if parses_calls and self.calls is not None else plain)
        return AnswerRules(
            start,
            shows_start=not is_explicit or _flag(self._body, "echo", False),
            skips_space=bool(tags or self.calls or self._json),
            tags=tags if self._shows_reasoning else ReasoningTags(),
            calls=calls,
            tools=self.tools,
        )

    def call_fields(self) -> dict[str, Any]:
        """Native fields: the grammar of the calls with its trigger, and the marks that must be seen."""
        tags, family = self._form.tags, self._form.family
        preserved = [tag.strip() for tag in (tags.start, tags.end) if tag.strip()]
        formats = (self.calls, family.without_calls if family is not None else None)
        preserved += [mark for form in formats if form is not None for mark in form.marks if mark]
        return {"preserved_tokens": preserved} | self._grammar_fields()

    def _grammar_fields(self) -> dict[str, Any]:
        calls = self.calls
        if calls is None:
            return {}
        if self._choice.needs_call:
            thought = Thought(self._form.tags, self._prompt.answer_start, self._thinks)
            return {"grammar": required_grammar(calls, self.tools, thought, self._settings.special_token)}
        grammar = lazy_grammar(calls, self.tools, self._settings.special_token)
        if grammar is None:
            return {}
        trigger = {"type": TRIGGER_WORD, "value": calls.opening}
        return {"grammar": grammar, "grammar_lazy": True, "grammar_triggers": [trigger]}

    def schema_fields(self, schema: Any) -> dict[str, Any]:
        """Native fields: the grammar of an answer that is JSON. Raises InvalidChat for a schema of no use."""
        thought = Thought(self._form.tags, self._prompt.answer_start, self._thinks)
        try:
            may_be_fenced = self._json is not None
            grammar = json_grammar(schema, thought, self._settings.special_token, may_be_fenced)
        except SchemaError as error:
            raise InvalidChat(f"{_NO_PARSER}: {error}") from None
        return {"grammar": grammar, "grammar_lazy": False, "grammar_triggers": []}

    def budget_fields(self) -> dict[str, Any]:
        """Native fields: where reasoning begins and ends, and how long it may be."""
        end = self._form.tags.end.strip()
        if not end:
            return {}
        budgets = (self._body.get(name) for name in ("reasoning_budget_tokens", "thinking_budget_tokens"))
        asked = next((int(value) for value in budgets if isinstance(value, int | float)), -1)
        message = _text(self._body, "reasoning_budget_message", self._settings.reasoning_budget_message)
        return {
            "reasoning_budget_tokens": self._settings.reasoning_budget if asked == -1 else asked,
            "reasoning_budget_start_tag": self._form.tags.start.strip(),
            "reasoning_budget_end_tags": [end],
            "reasoning_budget_message": message,
            "reasoning_control": _flag(self._body, "reasoning_control", False),
        }


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
        wrapper = _object(response_format, "json_schema")
        return _object(wrapper if "schema" in wrapper else response_format, "schema")
    if kind not in ("", "text"):
        raise InvalidChat(f'response_format type must be one of "text" or "json_object", but got: {kind}')
    return schema


def _continuation(
    body: dict[str, Any], messages: tuple[Message, ...], settings: ChatSettings
) -> tuple[Continuation, bool]:
    """(how the last message is gone on with, whether a generation prompt is added)."""
    adds_generation_prompt = _flag(body, "add_generation_prompt", True)
    asked: Any = body.get("continue_final_message")
    if _is_continued(body):
        if adds_generation_prompt:
            raise InvalidChat("Cannot set both add_generation_prompt and continue_final_message to true.")
        return ("auto" if asked is True else asked), False
    if settings.prefill_assistant and messages and messages[-1].role == "assistant":
        check_final_turn(messages)
        return "auto", False
    return "", adds_generation_prompt


def _is_continued(body: dict[str, Any]) -> bool:
    asked = body.get("continue_final_message")
    return asked is True or asked in ("content", "reasoning_content")


def _reasoning_format(body: dict[str, Any], settings: ChatSettings) -> str:
    return _text(body, "reasoning_format", settings.reasoning_format)


def _check_reasoning_format(body: dict[str, Any]) -> None:
    if "reasoning_format" not in body:
        return
    name = body["reasoning_format"]
    if not isinstance(name, str):
        raise ChatError(f"[json.exception.type_error.302] type must be string, but is {json_kind(name)}")
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
