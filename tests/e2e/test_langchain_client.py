"""LangChain's ChatOpenAI as a client."""

from __future__ import annotations

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.e2e.server import Server

QUESTION = "What is the capital of France?"


def chat_model(server: Server, **fields: object) -> ChatOpenAI:
    return ChatOpenAI(
        model="smollm2",
        base_url=f"{server.url}/v1",
        api_key=SecretStr("none"),
        temperature=0,
        max_retries=0,
        timeout=120,
        max_completion_tokens=16,
        **fields,
    )


def test_the_streamed_answer_equals_the_plain_one(server: Server) -> None:
    model = chat_model(server, stream_usage=True)
    plain = model.invoke(QUESTION)
    chunks = list(model.stream(QUESTION))
    assert "Paris" in str(plain.content)
    assert "".join(str(chunk.content) for chunk in chunks) == plain.content
    assert plain.usage_metadata is not None
    assert [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata] == [
        plain.usage_metadata["output_tokens"]
    ]


def test_through_the_responses_too(server: Server) -> None:
    model = chat_model(server, use_responses_api=True)
    assert "Paris" in model.invoke(QUESTION).text
