"""The anthropic package as a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.e2e.server import Server

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
MODEL = "smollm2"
GREEDY: Any = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16, "extra_body": {"temperature": 0}}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**GREEDY)
    assert "Paris" in text_of(message)
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens <= 16


def test_the_streamed_message_equals_the_plain_one(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert text == text_of(whole) == text_of(plain)
    assert (whole.stop_reason, whole.usage.output_tokens) == (plain.stop_reason, plain.usage.output_tokens)


def test_what_was_reused_is_told_apart(client: anthropic.Anthropic) -> None:
    client.messages.create(**GREEDY)
    usage = client.messages.create(**GREEDY).usage
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    assert (usage.cache_read_input_tokens or 0) > 0
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_a_stop_sequence_is_told(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**GREEDY, stop_sequences=["capital"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "capital")
    assert "capital" not in text_of(message)


def test_a_system_text_and_a_begun_answer(client: anthropic.Anthropic) -> None:
    begun: Any = [*MESSAGES, {"role": "assistant", "content": "The city of"}]
    message = client.messages.create(**GREEDY | {"messages": begun}, system="You know geography.")
    assert text_of(message).startswith("The city of")


def test_a_tool_is_called_and_its_result_read(client: anthropic.Anthropic) -> None:
    question: Any = [{"role": "user", "content": "How is the weather in Lima?"}]
    asked = {**GREEDY, "messages": question, "tools": [WEATHER], "max_tokens": 64}
    message = client.messages.create(**asked, tool_choice={"type": "tool", "name": "get_weather"})
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert message.stop_reason == "tool_use"
    assert (call.name, list(call.input)) == ("get_weather", ["city"])
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [
        *question,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**{**asked, "messages": turns}).content


def test_a_streamed_call_equals_the_plain_one(client: anthropic.Anthropic) -> None:
    asked = {**GREEDY, "tools": [WEATHER], "max_tokens": 64, "tool_choice": {"type": "any"}}
    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        whole = stream.get_final_message()
    found = [[(b.name, b.input) for b in m.content if b.type == "tool_use"] for m in (plain, whole)]
    assert found[0] == found[1] != []


def test_errors_arrive_as_the_packages_own(client: anthropic.Anthropic) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.InternalServerError, match="image input is not supported"):
        client.messages.create(**GREEDY | {"messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.BadRequestError, match="Field 'max_tokens'"):
        client.messages.create(**GREEDY | {"max_tokens": -2})
