"""The chat template of a model: from messages to the prompt's text."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, Protocol

from mlxserver.chat.builtin_templates import FORMATS, Formatter
from mlxserver.chat.capabilities import Capabilities, preserve_reasoning, probe
from mlxserver.chat.errors import ChatError, InvalidChat, TemplateError
from mlxserver.chat.formats.family import Family
from mlxserver.chat.formats.registry import SAMPLE_NAME, find_family
from mlxserver.chat.jinja_env import TemplateEnvironment, compile_template, render
from mlxserver.chat.messages import Message, ToolCall, trimmed
from mlxserver.chat.reasoning_tags import ReasoningTags, find_tags
from mlxserver.chat.template_detection import detect_format
from mlxserver.kv.prefix import common_prefix

Continuation = Literal["", "auto", "content", "reasoning_content"]

CHATML = """{%- for message in messages -%}
  {{- '<|im_start|>' + message.role + '
' + message.content + '<|im_end|>
' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant
' -}}
{%- endif -%}"""
"""The template of a model that brings none; ``/props`` shows its text, so it is llama.cpp's to the letter."""

_CHANGES_VALUES = re.compile(r"\.(append|clear|extend|insert|pop|remove|reverse|setdefault|sort|update)\(")
"""Templates that change lists and objects get copies: a prompt is rendered more than once."""

_STEPFUN = "You have access to the following functions in JSONSchema format"


@dataclass(frozen=True, slots=True)
class Chat:
    """What a request asks to be rendered."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continuation: Continuation = ""
    """How the last message, an answer, is gone on with; empty where it is not."""
    enable_thinking: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    generation_prompt: str = ""
    """What the template adds to make the model answer, and the text to go on with."""
    prefill: str = ""
    """The part of the answer's content that the prompt already holds."""
    answer_start: str = ""
    """The part of the answer that it holds: an opened or closed reasoning, and ``prefill``."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the model that a template belongs to writes its answers."""

    tags: ReasoningTags = ReasoningTags()
    family: Family | None = None
    """None: nothing is known of its tool calls."""


class ChatTemplate(Protocol):
    """``format`` is the name of the answer's parser in ``generation_settings``."""

    source: str
    tool_use_source: str
    format: str

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def supports_thinking(self) -> bool: ...

    def render(self, chat: Chat) -> Prompt:
        """Raises ``ChatError``."""
        ...

    def answer_form(self, has_tools: bool) -> AnswerForm: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a template needs to know of the tokenizer."""

    bos_token: str = ""
    eos_token: str = ""
    adds_bos: bool = False
    adds_eos: bool = False


def make_template(
    given: str, use_jinja: bool, own: str = "", own_tool_use: str = "", vocabulary: Vocabulary | None = None
) -> ChatTemplate:
    """``given`` is ``--chat-template``, which goes before the model's ``own`` templates.

    Raises ``TemplateError`` where none can be used. A built-in name means its format with jinja too.
    """
    source = given or own
    if source in ("", "chatml"):
        source = "" if given else own_tool_use
    tool_use = "" if given else own_tool_use
    if not use_jinja or given in FORMATS.keys() - {"chatml"}:
        return BuiltinTemplate(source or CHATML, tool_use)
    return JinjaTemplate(source or CHATML, tool_use, vocabulary or Vocabulary())


class BuiltinTemplate:
    """One of llama.cpp's own formats: the one named by ``source``, or recognised in it."""

    format = "Content-only"
    supports_thinking = False

    def __init__(self, source: str, tool_use_source: str = "") -> None:
        found = detect_format(source)
        if found is None:
            raise TemplateError("this custom template is not supported, try using --jinja")
        self.source = _normalised(source)
        self.tool_use_source = tool_use_source
        self._format: Formatter = found

    @cached_property
    def capabilities(self) -> Capabilities:
        """Those of the source as a jinja template, as llama-server reports them."""
        try:
            return probe(self.source)
        except TemplateError:
            return Capabilities()

    def render(self, chat: Chat) -> Prompt:
        turns = [(message.role, _all_text(message)) for message in chat.messages]
        return Prompt(self._format(turns, chat.add_generation_prompt))

    def answer_form(self, has_tools: bool) -> AnswerForm:
        return AnswerForm()


class JinjaTemplate:
    """A model's jinja template, with a second one for requests with tools if the model has it."""

    format = "peg-native"

    def __init__(self, source: str, tool_use_source: str, vocabulary: Vocabulary) -> None:
        self._default = _Variant(source, vocabulary)
        self.source = _normalised(source)
        self.tool_use_source = tool_use_source
        self._tool_use = _optional_variant(tool_use_source, vocabulary)

    @property
    def capabilities(self) -> Capabilities:
        return (self._tool_use or self._default).capabilities

    @cached_property
    def supports_thinking(self) -> bool:
        """The template has tags around reasoning."""
        return bool(self._default.reasoning_tags)

    def answer_form(self, has_tools: bool) -> AnswerForm:
        return self._variant(has_tools).answer_form

    def _variant(self, has_tools: bool) -> _Variant:
        return self._tool_use if has_tools and self._tool_use else self._default

    def render(self, chat: Chat) -> Prompt:
        try:
            return self._variant(bool(chat.tools)).render(chat)
        except TemplateError as error:
            raise InvalidChat(
                f"Unable to generate parser for this template. Automatic parser generation failed: {error}"
            ) from error


class _Variant:
    """One template source with what is known of it."""

    def __init__(self, source: str, vocabulary: Vocabulary) -> None:
        self.source = _patched(source)
        self._changes_values = _CHANGES_VALUES.search(source) is not None
        self.vocabulary = vocabulary
        self.template = compile_template(TemplateEnvironment(), self.source)
        self.capabilities = probe(self.source)

    def render(self, chat: Chat) -> Prompt:
        """With a continuation the last message's text comes after the generation prompt, as it stands."""
        messages = self._messages(chat)
        opening, opened = self._opening(chat, messages)
        if not chat.continuation:
            text = self._apply(chat, messages, chat.add_generation_prompt)
            return Prompt(text, opening + opened, answer_start=opened)
        text = self._apply(chat, messages, False)
        last = chat.messages[-1] if chat.messages else None
        if last is None or last == Message(last.role):
            return Prompt(text, opening + opened, answer_start=opened)
        prefill = "" if self._continues_reasoning(chat, last) else last.text("\n\n")
        start = self._reasoning_before(chat, last) + prefill
        return Prompt(text + opening + start, opening + start, prefill, start)

    def _opening(self, chat: Chat, messages: list[dict[str, Any]]) -> tuple[str, str]:
        """The generation prompt up to a reasoning tag that it has, and from there on."""
        generation_prompt = self._generation_prompt(chat, messages)
        tag = self.reasoning_tags.start.strip()
        at = generation_prompt.find(tag) if tag else -1
        return (generation_prompt, "") if at < 0 else (generation_prompt[:at], generation_prompt[at:])

    def _reasoning_before(self, chat: Chat, last: Message) -> str:
        """The last message's reasoning, closed unless that is to go on."""
        tags = self.reasoning_tags
        if not tags.start:
            return ""
        end = "" if self._continues_reasoning(chat, last) else tags.end
        return f"{tags.start}{last.reasoning_content}{end}"

    @cached_property
    def answer_form(self) -> AnswerForm:
        return AnswerForm(self.reasoning_tags, find_family(self.source, self._sample_call()))

    def _sample_call(self) -> str:
        """What becomes of an answer that is one call; empty where the template cannot show it."""
        call = ToolCall(SAMPLE_NAME, '{"argument": "value"}', "call00001")
        chat = Chat((Message("user", "A question"), Message("assistant", tool_calls=(call,))))
        try:
            return self._apply(chat, self._messages(chat), False)
        except (ChatError, TemplateError):
            return ""

    @cached_property
    def reasoning_tags(self) -> ReasoningTags:
        def shown(messages: list[dict[str, Any]], adds_prompt: bool, thinks: bool) -> str | None:
            try:
                return self._apply(Chat((), enable_thinking=thinks), messages, adds_prompt)
            except TemplateError:
                return None

        return find_tags(self.source, shown)

    def _continues_reasoning(self, chat: Chat, last: Message) -> bool:
        if chat.continuation == "auto":
            return bool(last.reasoning_content) and not last.content and not last.parts
        return chat.continuation == "reasoning_content"

    def _messages(self, chat: Chat) -> list[dict[str, Any]]:
        shown = chat.messages[:-1] if chat.continuation else chat.messages
        if _STEPFUN in self.source:
            shown = tuple(trimmed(message) for message in shown)
        caps = self.capabilities
        messages = [m.json(caps.supports_string_content, caps.supports_typed_content) for m in shown]
        if "<|channel|>" not in self.source:
            _name_developers_system(messages)
        if not caps.supports_system_role:
            _merge_system_message(messages)
        if caps.supports_object_arguments:
            _parse_arguments(messages)
        return messages

    def _apply(self, chat: Chat, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        now = datetime.now()
        context: dict[str, Any] = {
            "messages": messages,
            "bos_token": self.vocabulary.bos_token,
            "eos_token": self.vocabulary.eos_token,
            "enable_thinking": chat.enable_thinking,
            "datetime": now.strftime("%b %d %Y"),
            "date_string": now.strftime("%d %b %Y"),
        }
        if chat.tools:
            context["tools"] = list(chat.tools)
        context.update(chat.kwargs)
        if add_generation_prompt:
            context["add_generation_prompt"] = True
        values = {**_derived(context), **context}
        return self._without_ends(render(self.template, deepcopy(values) if self._changes_values else values))

    def _generation_prompt(self, chat: Chat, messages: list[dict[str, Any]]) -> str:
        without = self._apply(chat, messages, False)
        text = self._apply(chat, messages, True)
        return text[common_prefix(without, text) :]

    def _without_ends(self, text: str) -> str:
        """Tokenizing adds the first and last token itself where the vocabulary wants them."""
        if self.vocabulary.adds_bos:
            text = text.removeprefix(self.vocabulary.bos_token)
        if self.vocabulary.adds_eos:
            text = text.removesuffix(self.vocabulary.eos_token)
        return text


def _normalised(source: str) -> str:
    """As ``/props`` shows it: one kind of line end, none at the very end."""
    return source.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def _optional_variant(source: str, vocabulary: Vocabulary) -> _Variant | None:
    try:
        return _Variant(source, vocabulary) if source else None
    except TemplateError:
        return None


def _patched(source: str) -> str:
    """Two families of templates refuse chats for reasons that do not hold here; llama.cpp lifts them too."""
    if "<|channel|>" in source:
        return source.replace(
            '{%- if "<|channel|>analysis<|message|>" in message.content or '
            '"<|channel|>final<|message|>" in message.content %}',
            "{%- if false %}",
        )
    if "[TOOL_CALLS]" in source:
        return source.replace(
            "{%- if (message['content'] is none or message['content'] == '' or "
            "message['content']|length == 0) and (message['tool_calls'] is not defined or "
            "message['tool_calls'] is none or message['tool_calls']|length == 0) %}",
            "{%- if false %}",
        )
    return source


def _derived(context: dict[str, Any]) -> dict[str, Any]:
    """Other names under which templates look for what a kwarg says."""
    derived: dict[str, Any] = {}
    keeps = context.get("preserve_reasoning")
    if isinstance(keeps, bool):
        derived |= preserve_reasoning(keeps)
    effort = context.get("reasoning_effort")
    if isinstance(effort, str) and effort:
        derived["reasoning_strength"] = effort
    return derived


def _all_text(message: Message) -> str:
    return "\n".join(text for text in (message.content, *message.parts) if text)


def _name_developers_system(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"


def _merge_system_message(messages: list[dict[str, Any]]) -> None:
    """For templates without a system role: its text goes in front of the next message's."""
    if not messages or messages[0]["role"] != "system":
        return
    system = messages.pop(0)
    if messages:
        contents = (system["content"], messages[0]["content"])
        if not all(isinstance(content, str) for content in contents):
            raise ChatError("[json.exception.type_error.302] type must be string, but is array")
        messages[0]["content"] = "\n".join(contents)


def _parse_arguments(messages: list[dict[str, Any]]) -> None:
    for message in messages:
        for call in message.get("tool_calls", ()):
            try:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            except ValueError as error:
                raise InvalidChat(f"Failed to parse tool call arguments as JSON: {error}") from None
