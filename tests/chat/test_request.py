"""A chat request as a completion request."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.chat.errors import ChatError, InvalidChat
from mlxserver.chat.formats.json_answer import JsonAnswer
from mlxserver.chat.request import ChatRequest, ChatSettings, parse_chat
from mlxserver.chat.template import CHATML, make_template
from mlxserver.sampling.params import Grammar

HI = [{"role": "user", "content": "hi"}]
GOING_ON = [*HI, {"role": "assistant", "content": "b"}]
TOOL = {"type": "function", "function": {"name": "f"}}
WITH_TOOLS = CHATML + "{% if tools %}{{ tools | tojson }}{% endif %}"


def parse(settings: ChatSettings | None = None, source: str = CHATML, **body: Any) -> ChatRequest:
    settings = settings or ChatSettings()
    return parse_chat({"messages": HI} | body, make_template(source, settings.use_jinja), settings)


def failure(**body: Any) -> tuple[str, str]:
    with pytest.raises(ChatError) as raised:
        parse(**body)
    return raised.value.type.removesuffix("_error"), str(raised.value)


def test_the_prompt_and_the_format_become_fields() -> None:
    fields = parse(temperature=0.5, model="x").fields
    assert fields["prompt"].endswith("<|im_start|>assistant\n")
    assert (fields["chat_format"], fields["temperature"], fields["stop"]) == (2, 0.5, [])
    assert parse(ChatSettings(use_jinja=False)).fields["chat_format"] == 0


def test_stop_is_a_list_of_its_own_kind() -> None:
    assert parse(stop="x").fields["stop"] == ["x"]
    assert parse(stop=["x", "y"]).fields["stop"] == ["x", "y"]
    assert parse(stop=5).fields["stop"] == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"tool_choice": "any"}, ("invalid_request", "Invalid tool_choice: any")),
        (
            {"response_format": {"type": "xml"}},
            (
                "invalid_request",
                'response_format type must be one of "text" or "json_object", but got: xml',
            ),
        ),
        (
            {"json_schema": {"type": "null"}, "grammar": "root ::= x"},
            ("server", "Cannot use both json_schema and grammar"),
        ),
        (
            {"tools": [TOOL], "grammar": "x"},
            ("invalid_request", "Cannot use custom grammar constraints with tools."),
        ),
        (
            {"continue_final_message": True},
            (
                "invalid_request",
                "Cannot set both add_generation_prompt and continue_final_message to true.",
            ),
        ),
        ({"reasoning_format": "xml"}, ("server", "Unknown reasoning format: xml")),
        (
            {"reasoning_format": None},
            ("server", "[json.exception.type_error.302] type must be string, but is null"),
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": "true"}},
            ("invalid_request", 'invalid type for "enable_thinking" (expected boolean, got string)'),
        ),
        (
            {"top_logprobs": 2},
            ("invalid_request", "top_logprobs requires logprobs to be set to true"),
        ),
        (
            {"logprobs": True, "tools": [TOOL], "stream": True},
            ("invalid_request", "logprobs is not supported with tools + stream"),
        ),
        (
            {"messages": [*GOING_ON, {"role": "assistant", "content": "c"}]},
            ("invalid_request", "Cannot have 2 or more assistant messages at the end of the list."),
        ),
    ],
)
def test_what_is_refused(body: dict[str, Any], error: tuple[str, str]) -> None:
    assert failure(**body) == error


def test_messages_are_required() -> None:
    for body in ({}, [1], "text", None):
        with pytest.raises(InvalidChat, match="'messages' is required"):
            parse_chat(body, make_template("", True), ChatSettings())


def test_without_jinja_there_are_no_tools() -> None:
    settings = ChatSettings(use_jinja=False)
    with pytest.raises(ChatError, match="tools param requires --jinja flag"):
        parse(settings, tools=[TOOL])
    with pytest.raises(ChatError, match="tool_choice param requires --jinja flag"):
        parse(settings, tool_choice="none")
    assert "grammar" not in parse(settings, tools=[], tool_choice="auto").fields


def test_an_answer_at_the_end_is_gone_on_with() -> None:
    assert parse(messages=GOING_ON).prompt.prefill == "b"
    closed = parse(ChatSettings(prefill_assistant=False), messages=GOING_ON)
    assert (closed.prompt.prefill, closed.fields["prompt"][-22:]) == ("", "<|im_start|>assistant\n")
    explicit = parse(messages=GOING_ON, continue_final_message=True, add_generation_prompt=False)
    assert explicit.prompt.prefill == "b"


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


OBJECT: dict[str, Any] = {"type": "json_object"}


@pytest.mark.parametrize(
    ("body", "schema"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": OBJECT}, "{}"),
        ({"response_format": {"type": "json_schema"}}, "{}"),
        ({"response_format": OBJECT | {"schema": {"const": 1}}}, '{"const":1}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 1}}}},
            '{"const":1}',
        ),
        ({"response_format": {"type": "json_schema", "schema": {"const": 1}}}, '{"const":1}'),
        ({"json_schema": {"const": 1}}, '{"const":1}'),
        ({"response_format": OBJECT, "json_schema": {"const": 1}}, '{"const":1}'),
        ({"response_format": OBJECT | {"schema": {"const": 2}}, "json_schema": {"const": 1}}, '{"const":2}'),
        ({"response_format": OBJECT | {"schema": {"const": 1}}, "tools": [TOOL]}, '{"const":1}'),
    ],
)
def test_the_schema_of_an_answer(body: dict[str, Any], schema: str | None) -> None:
    wanted = None if schema is None else Grammar("json_schema" if schema == "{}" else "json_answer", schema)
    assert parse(source=WITH_TOOLS, **body).fields.get("grammar") == wanted


def test_only_an_answer_that_is_read_may_be_fenced() -> None:
    for settings in (ChatSettings(use_jinja=False), ChatSettings(parses_answers=False)):
        assert parse(settings, json_schema={"const": 1}).fields["grammar"].kind == "json_schema"
    thinking = parse(source=THINKING, json_schema={"const": 1}, reasoning_format="none")
    assert thinking.fields["grammar"].kind == "json_schema"
    assert isinstance(parse(json_schema={"const": 1}).rules.calls, JsonAnswer)


def test_any_object_gives_way_to_a_grammar_and_to_tools() -> None:
    assert parse(response_format=OBJECT, grammar="root ::= [a]").fields["grammar"] == "root ::= [a]"
    grammar = parse(source=WITH_TOOLS, response_format=OBJECT, tools=[TOOL]).fields.get("grammar")
    assert grammar is None or grammar.kind == "lark"


def test_json_comes_behind_the_reasoning() -> None:
    prompt_opens = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    grammar = parse(source=prompt_opens, json_schema={"const": 1}).fields["grammar"]
    assert grammar.kind == "lark" and "think>/" in grammar.text and '%json {"const": 1}' in grammar.text


def test_a_schema_of_no_use_is_refused() -> None:
    with pytest.raises(
        InvalidChat, match='JSON schema conversion failed:\nUnrecognized schema: {"type":"no"}'
    ):
        parse(json_schema={"type": "no"})


def test_log_probabilities() -> None:
    assert parse(logprobs=True).fields["n_probs"] == 20
    assert parse(logprobs=True, top_logprobs=0).fields["n_probs"] == 0
    assert "n_probs" not in parse(logprobs=False).fields


def test_thinking_is_told_to_the_template() -> None:
    source = "{{ enable_thinking }} {{ reasoning_effort }}"
    thinks = ChatSettings(enable_thinking=True, kwargs={"reasoning_effort": "high"})

    def text(**body: Any) -> str:
        return parse(thinks, source, **body).prompt.text

    assert text() == "True high"
    assert text(reasoning_effort="low") == "True low"
    assert text(reasoning_effort="none") == "False "
    assert text(chat_template_kwargs={"enable_thinking": False}) == "False high"
    assert text(chat_template_kwargs="no object") == "True high"
