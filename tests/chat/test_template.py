"""From messages to a prompt: context, continuation, and what templates without a feature get instead."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from mlxserver.chat.errors import InvalidChat, TemplateError
from mlxserver.chat.messages import Message, ToolCall
from mlxserver.chat.template import CHATML, Chat, ChatTemplate, Prompt, Vocabulary, make_template

USER = Message("user", "a")
ANSWER = Message("assistant", "b")
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)


def template(source: str = CHATML, **vocabulary: Any) -> ChatTemplate:
    return make_template(source, use_jinja=True, vocabulary=Vocabulary(**vocabulary))


def prompt(*messages: Message, source: str = CHATML, **chat: Any) -> Prompt:
    return template(source).render(Chat(messages, **chat))


def test_a_generation_prompt_is_what_makes_the_model_answer() -> None:
    rendered = prompt(USER)
    assert rendered.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert rendered.generation_prompt == "<|im_start|>assistant\n"
    assert prompt(USER, add_generation_prompt=False).text == "<|im_start|>user\na<|im_end|>\n"


def test_an_answer_is_gone_on_with() -> None:
    rendered = prompt(USER, ANSWER, continuation="auto", add_generation_prompt=False)
    assert rendered.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb"
    assert (rendered.prefill, rendered.generation_prompt) == ("b", "<|im_start|>assistant\nb")


def test_parts_of_a_prefill_are_joined_by_a_blank_line() -> None:
    answer = Message("assistant", parts=("b", "c"))
    assert prompt(USER, answer, continuation="auto").prefill == "b\n\nc"


def test_an_empty_answer_to_go_on_with_leaves_the_prompt_open() -> None:
    rendered = prompt(USER, Message("assistant"), continuation="auto")
    assert rendered.text == "<|im_start|>user\na<|im_end|>\n"


def test_developers_are_system_messages() -> None:
    assert "<|im_start|>system\nd" in prompt(Message("developer", "d"), USER).text


def test_a_system_message_is_merged_where_the_template_has_none() -> None:
    system = Message("system", "s")
    assert prompt(system, USER, source=NO_SYSTEM).text == "[s\na]>"
    assert prompt(system, source=NO_SYSTEM).text == ">"


def test_typed_content_for_templates_that_read_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    assert prompt(USER, source=source).text == "(a)"
    assert prompt(Message("user", parts=("a", "b")), source=source).text == "(a)(b)"


def test_call_arguments_are_objects_for_templates_that_look_inside() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    call = Message("assistant", tool_calls=(ToolCall("f", '{"x": 1}'),))
    assert prompt(call, source=source).text == "x=1"
    broken = Message("assistant", tool_calls=(ToolCall("f", "{"),))
    with pytest.raises(Exception, match="Failed to parse tool call arguments as JSON"):
        prompt(broken, source=source)


def test_kwargs_and_dates_are_in_the_context() -> None:
    now = datetime.now()
    source = "{{ mood }} {{ date_string }} {{ datetime }} {{ bos_token }} {{ enable_thinking }}"
    rendered = template(source, bos_token="<s>").render(Chat((USER,), kwargs={"mood": "calm"}))
    assert rendered.text == f"calm {now:%d %b %Y} {now:%b %d %Y} <s> False"


def test_kwargs_go_before_what_the_request_gives() -> None:
    assert prompt(USER, source="{{ messages | length }}", kwargs={"messages": []}).text == "0"


def test_reasoning_kwargs_have_other_names_too() -> None:
    source = "{{ reasoning_strength }} {{ preserve_thinking }} {{ clear_thinking }}"
    kwargs = {"reasoning_effort": "low", "preserve_reasoning": True}
    assert prompt(USER, source=source, kwargs=kwargs).text == "low True False"


def test_tokens_that_tokenizing_adds_are_taken_off() -> None:
    source = "<s>{{ messages[0].content }}</s>"
    added = template(source, bos_token="<s>", eos_token="</s>", adds_bos=True, adds_eos=True)
    assert added.render(Chat((USER,))).text == "a"
    kept = template(source, bos_token="<s>", eos_token="</s>")
    assert kept.render(Chat((USER,))).text == "<s>a</s>"


def test_tools_choose_the_second_template() -> None:
    both = make_template("", True, own="plain", own_tool_use="{{ tools | length }} tools")
    assert both.render(Chat((USER,))).text == "plain"
    assert both.render(Chat((USER,), tools=({"type": "function"},))).text == "1 tools"
    assert both.tool_use_source == "{{ tools | length }} tools"


def test_a_template_that_raises_is_the_clients_error() -> None:
    with pytest.raises(InvalidChat, match="Jinja Exception: no"):
        prompt(USER, source="{% if messages[0].content == 'a' %}{{ raise_exception('no') }}{% endif %}")


THINKS = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }};"
    "{% endfor %}{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
)


def test_thinking_is_found_in_the_template() -> None:
    assert not template().supports_thinking
    assert not template("{{ 'yes' if enable_thinking else 'no' }}{{ messages[0].content }}").supports_thinking
    assert template(THINKS).supports_thinking


@pytest.mark.parametrize(
    ("content", "reasoning", "continuation", "end"),
    [
        ("b", "", "auto", "assistant:<think>\n\n</think>\nb"),
        ("b", "why", "auto", "assistant:<think>\nwhy\n</think>\nb"),
        ("", "why", "auto", "assistant:<think>\nwhy"),
        ("b", "why", "reasoning_content", "assistant:<think>\nwhy"),
        ("", "why", "content", "assistant:<think>\nwhy\n</think>\n"),
    ],
)
def test_a_prefill_has_its_reasoning(content: str, reasoning: str, continuation: Any, end: str) -> None:
    answer = Message("assistant", content, reasoning_content=reasoning)
    assert prompt(USER, answer, source=THINKS, continuation=continuation).text == f"user:a;{end}"


def test_a_template_that_builds_lists_gets_its_own() -> None:
    source = "{% set _ = messages.append({'content': 'x'}) %}{{ messages | map(attribute='content') | join }}"
    assert prompt(USER, source=source).text == "ax"


def test_the_source_is_shown_without_its_last_line_end() -> None:
    assert template("a\r\nb\n").source == "a\nb"


def test_a_model_without_a_template_speaks_chatml() -> None:
    assert make_template("", True).source == CHATML
    assert make_template("chatml", True, own="other").source == CHATML
    assert make_template("", True, own_tool_use="only {{ tools }}").source == "only {{ tools }}"


def test_the_legacy_engine_finishes_the_last_answer() -> None:
    legacy = make_template("chatml", use_jinja=False)
    chat = Chat((USER, ANSWER), add_generation_prompt=False, continuation="auto")
    assert legacy.render(chat).text == ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n")
    assert legacy.format == "Content-only"
    joined = replace(chat, messages=(Message("user", parts=("a", "b")),))
    assert "a\nb" in legacy.render(joined).text


def test_a_name_means_its_format_with_jinja_too() -> None:
    assert (
        make_template("llama3", use_jinja=True).render(Chat((USER,))).text.startswith("<|start_header_id|>")
    )


def test_unusable_templates_are_refused() -> None:
    with pytest.raises(TemplateError, match="not supported, try using --jinja"):
        make_template("nosuch", use_jinja=False)
    with pytest.raises(TemplateError, match="cannot parse"):
        make_template("{{ broken", use_jinja=True)
