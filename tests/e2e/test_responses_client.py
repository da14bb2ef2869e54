"""The openai package as a client of the responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.server import Server

MODEL = "smollm2"
GREEDY: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}
QUESTION = "What is the capital of France?"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Capital(BaseModel):
    city: str
    is_large: bool


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(**GREEDY, input=QUESTION)
    assert "Paris" in response.output_text
    assert (response.status, response.model) == ("completed", MODEL)
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_the_streamed_response_equals_the_plain_one(client: openai.OpenAI) -> None:
    plain = client.responses.create(**GREEDY, input=QUESTION)
    with client.responses.create(**GREEDY, input=QUESTION, stream=True) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    completed = events[-1]
    assert completed.type == "response.completed"
    assert "".join(deltas) == completed.response.output_text == plain.output_text
    assert events[0].type == "response.created"


def test_an_answer_goes_back_as_input(client: openai.OpenAI) -> None:
    first = client.responses.create(**GREEDY, input=QUESTION, instructions="You know geography.")
    items: Any = [{"role": "user", "content": QUESTION}, *first.output]
    items.append({"role": "user", "content": "Say that again."})
    second = client.responses.create(**GREEDY, input=items, instructions="You know geography.")
    assert second.output_text
    assert second.usage is not None and second.usage.input_tokens_details.cached_tokens > 0


def test_a_function_is_called_and_its_output_read(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": "How is the weather in Lima?"}]
    asked = GREEDY | {"tools": [WEATHER], "max_output_tokens": 64}
    choice: Any = {"type": "function", "name": "get_weather"}
    response = client.responses.create(**asked, input=items, tool_choice=choice)
    [call] = [item for item in response.output if item.type == "function_call"]
    assert (call.name, list(json.loads(call.arguments))) == ("get_weather", ["city"])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert client.responses.create(**asked, input=[*items, call, result]).output


def test_an_answer_in_a_given_form(client: openai.OpenAI) -> None:
    response = client.responses.parse(
        **GREEDY | {"max_output_tokens": 64}, input=QUESTION, text_format=Capital
    )
    assert isinstance(response.output_parsed, Capital)


def test_errors_arrive_as_the_packages_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**GREEDY, input=QUESTION, previous_response_id="resp_1")
