"""Tool calls and reasoning in chat completions: plain and streamed alike, and what the sampler is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mlxserver.api.state import ServerState
from mlxserver.engine.task import Task
from tests.api.client import events
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import client_of, served_state

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": PARAMETERS}}
HERMES = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
    "</think>\n\n{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "Zürich"}}\n</tool_call>'


def served(script: str | Sequence[int], *argv: str) -> tuple[ServerState, FakeEngine]:
    text = list(script.encode()) if isinstance(script, str) else list(script)
    engine = FakeEngine([*text, EOS])
    return served_state("--chat-template", HERMES, *argv, engine=engine), engine


def plain(script: str, *argv: str, **body: Any) -> dict[str, Any]:
    state, _ = served(script, *argv)
    answer = client_of(state).post(PATH, json={"messages": HI} | body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def streamed(script: str, *argv: str, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the choice that the deltas join to, the deltas)."""
    state, _ = served(script, *argv)
    response = client_of(state).post(PATH, json={"messages": HI, "stream": True} | body)
    chunks = [event["choices"][0] for event in events(response)[:-1]]
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for delta in (chunk["delta"] for chunk in chunks):
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append(
                    {"type": "function", "function": {"name": call["function"]["name"], "arguments": ""}}
                )
            calls[call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")
    joined = {"finish_reason": chunks[-1]["finish_reason"], "index": 0, "message": message}
    return joined, [chunk["delta"] for chunk in chunks]


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    for call in choice["message"].get("tool_calls", ()):
        call.pop("id", None)
    return choice


def task_of(**body: Any) -> Task:
    state, engine = served("x")
    assert client_of(state).post(PATH, json={"messages": HI} | body).status_code == 200
    return engine.runs[0].task


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (CALL, {"tools": [TOOL]}),
        (f"Gleich.\n{CALL}\n{CALL}", {"tools": [TOOL]}),
        (f"dächte\n</think>\n\nGut.{CALL}", {"tools": [TOOL]}),
        (f"dächte\n</think>\n\nGut.{CALL}", {}),
        ("no end", {"tools": [TOOL]}),
        ("a\n</think>\n\nb", {"reasoning_format": "none"}),
        ("a\n</think>\n\nb", {"chat_template_kwargs": {"enable_thinking": False}}),
        (CALL, {"tools": [TOOL], "chat_template_kwargs": {"enable_thinking": False}}),
        (CALL, {"tools": [TOOL], "tool_choice": "none"}),
        (CALL, {"tools": [TOOL], "parse_tool_calls": False, "reasoning_format": "none"}),
        ("<tool_call>\nnothing\n</tool_call>", {"tools": [TOOL], "reasoning_format": "none"}),
    ],
)
def test_streamed_and_plain_answers_are_one(text: str, body: dict[str, Any]) -> None:
    assert streamed(text, **body)[0] == without_ids(plain(text, **body))


def test_a_call_begins_with_its_name_and_id() -> None:
    off = {"enable_thinking": False}
    _, deltas = streamed(CALL, tools=[TOOL], chat_template_kwargs=off)
    role, first, second, *_, last = deltas
    assert role == {"role": "assistant", "content": None}
    [call] = first["tool_calls"]
    assert len(call.pop("id")) == 32
    assert call == {"index": 0, "type": "function", "function": {"name": "f", "arguments": "{"}}
    assert second == {"tool_calls": [{"index": 0, "function": {"arguments": '"'}}]}
    assert last == {}
    choice = plain(CALL, tools=[TOOL], chat_template_kwargs=off)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""


def test_reasoning_has_its_own_field() -> None:
    message = plain("plan\n</think>\n\nblue")["message"]
    assert message == {"role": "assistant", "content": "blue", "reasoning_content": "plan\n"}
    text = plain("plan\n</think>\n\nblue", "--reasoning-format", "none")["message"]["content"]
    assert text == "<think>\nplan\n</think>\n\nblue"
    assert plain("plan\n</think>\n\nblue", "--reasoning", "off")["message"]["content"] == (
        "plan\n</think>\n\nblue"
    )


def test_an_answer_cut_in_its_first_mark_is_its_text() -> None:
    off = {"enable_thinking": False}
    choice = plain(CALL, tools=[TOOL], max_tokens=5, chat_template_kwargs=off)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "<tool")


def test_skipped_parsing_leaves_all_in_the_content() -> None:
    message = plain(CALL, "--skip-chat-parsing", tools=[TOOL], tool_choice="required")["message"]
    assert message == {"role": "assistant", "content": CALL}


def test_a_required_call_is_constrained_and_an_optional_one_from_its_mark_on() -> None:
    required = task_of(tools=[TOOL], tool_choice="required").sampling.grammar
    assert required is not None and not required.lazy
    optional = task_of(tools=[TOOL]).sampling.grammar
    assert optional is not None and optional.lazy
    assert [(t.kind, t.value) for t in optional.triggers] == [("word", "<tool_call>")]
    assert task_of(tools=[TOOL], tool_choice="none").sampling.grammar is None
    assert task_of().sampling.grammar is None


def test_a_template_without_tools_gets_them_described_where_a_call_is_required() -> None:
    engine = FakeEngine([*b'{"name": "f", "arguments": {"x": "y"}}', EOS])
    client = client_of(served_state(engine=engine))
    body = {"messages": HI, "tools": [TOOL]}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert "functions" not in prompt
    named = body | {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    assert '"name": "f"' in client.post("/apply-template", json=named).json()["prompt"]
    message = client.post(PATH, json=named).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": "y"}'}
    assert engine.runs[0].task.sampling.grammar is not None


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"reasoning_budget_tokens": 3}, 3),
        ({"thinking_budget_tokens": 4}, 4),
        ({"reasoning_budget_tokens": 3, "thinking_budget_tokens": 4}, 3),
        ({"reasoning_control": True}, -1),
        ({"tools": [TOOL]}, -1),
    ],
)
def test_the_reasoning_budget_goes_to_the_sampler(body: dict[str, Any], tokens: int) -> None:
    budget = task_of(reasoning_budget_message="!", **body).sampling.reasoning_budget
    assert budget is not None
    assert (bytes(budget.start), bytes(budget.forced)) == (b"<think>", b"!</think>")
    assert (budget.tokens, bytes(budget.prefill)) == (tokens, b"<|assistant|><think>\n")


def test_without_a_bound_there_is_no_budget() -> None:
    assert task_of().sampling.reasoning_budget is None
    assert task_of(reasoning_budget_tokens=-1).sampling.reasoning_budget is None
