"""The openai package as a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.server import Server

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]
MODEL = "smollm2"


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_equals_the_plain_answer(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, temperature=0)
    with client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None and plain.usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 4
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)


def test_several_choices_share_the_prompt(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, temperature=1, seed=7, n=3
    )
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2]


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0, stop=["."]
    )
    assert answer.choices[0].text == " Paris"
    assert answer.choices[0].finish_reason == "stop"


def test_completion_stream_equals_the_plain_answer(client: openai.OpenAI) -> None:
    prompt = "The quick brown fox"
    plain = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0)
    with client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=12, temperature=0, stream=True
    ) as stream:
        text = "".join(choice.text for chunk in stream for choice in chunk.choices)
    assert text == plain.choices[0].text


def test_errors_arrive_as_the_packages_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=[], max_tokens=4, temperature="hot")  # type: ignore[call-overload]
    with pytest.raises(openai.NotFoundError):
        client.get("/no-such-route", cast_to=object)
