"""Embeddings of a causal model and of an encoder, asked for by the openai package."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.server import Server, running_server

TEXTS = [
    "A cat sits on the mat.",
    "A kitten is sitting on a rug.",
    "The stock market fell sharply on Monday after the announcement of new tariffs.",
    "hello",
]
Vector = list[float]


@pytest.fixture(scope="module", params=["smollm2", "minilm"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model: Path = request.getfixturevalue(request.param)
    log = tmp_path_factory.mktemp("embeddings") / "log"
    arguments = "-c 2048 --embeddings --pooling mean --metrics --slots".split()
    with running_server(model, log, *arguments) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def cosine(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def of(client: openai.OpenAI, *texts: str) -> list[Vector]:
    answer = client.embeddings.create(model="any", input=list(texts))
    assert [item.index for item in answer.data] == list(range(len(texts)))
    return [item.embedding for item in answer.data]


def test_floats_and_base64_are_the_same(client: openai.OpenAI) -> None:
    """The package asks for base64 unless told otherwise, and decodes it."""
    packed = client.embeddings.create(model="any", input=TEXTS[0])
    plain = client.embeddings.create(model="any", input=TEXTS[0], encoding_format="float")
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-7)
    assert math.hypot(*plain.data[0].embedding) == pytest.approx(1.0, abs=1e-5)
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


def test_likeness(client: openai.OpenAI) -> None:
    cat, kitten, market, _ = of(client, *TEXTS)
    assert cosine(cat, kitten) > cosine(cat, market)


def test_alone_in_a_batch_and_in_parallel_they_are_the_same(client: openai.OpenAI) -> None:
    texts = TEXTS * 3
    with ThreadPoolExecutor(6) as pool:
        parallel = list(pool.map(lambda text: of(client, text)[0], texts))
    for text, in_batch, beside_others in zip(texts, of(client, *texts), parallel, strict=True):
        (alone,) = of(client, text)
        assert in_batch == pytest.approx(alone, abs=1e-4)
        assert beside_others == pytest.approx(alone, abs=1e-4)


def test_token_ids(server: Server, client: openai.OpenAI) -> None:
    tokens = server.post("/tokenize", content=TEXTS[3], add_special=True)["tokens"]
    answer = client.embeddings.create(model="any", input=[tokens])
    assert answer.data[0].embedding == pytest.approx(of(client, TEXTS[3])[0], abs=1e-5)
    assert answer.usage.prompt_tokens == len(tokens)


def test_numbers(server: Server, client: openai.OpenAI) -> None:
    before = server.metric("prompt_tokens_total")
    answer = client.embeddings.create(model="any", input=TEXTS)
    assert server.metric("prompt_tokens_total") == before + answer.usage.prompt_tokens
    assert server.busy() == [] and server.metric("tokens_predicted_total") == 0


def test_a_stream_goes_on_beside_them(smollm2: Path, tmp_path: Path) -> None:
    arguments = "-c 2048 --embeddings --pooling last".split()
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        body = {"prompt": "Once upon a time", "n_predict": 24, "temperature": 0}
        alone = server.post("/completion", **body)["content"]
        done = threading.Event()

        def embed() -> None:
            while not done.is_set():
                httpx.post(f"{server.url}/embedding", json={"content": TEXTS}, timeout=120).raise_for_status()

        thread = threading.Thread(target=embed)
        thread.start()
        try:
            assert server.post("/completion", **body)["content"] == alone
        finally:
            done.set()
            thread.join()
