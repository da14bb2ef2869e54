from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.engine.task import Failed, Task
from tests.api.embedding_engine import Answer, EmbeddingEngine
from tests.api.fake_engine import BOS
from tests.api.served import served

ROUTES = ("/embedding", "/embeddings", "/v1/embeddings")
NOT_STARTED = "This server does not support embeddings. Start it with `--embeddings`"


def sums(task: Task) -> Answer:
    return ([float(sum(task.tokens)), float(len(task.tokens))],)


def with_embeddings(*argv: str, answer: Any = sums, **info: Any) -> tuple[TestClient, EmbeddingEngine]:
    engine = EmbeddingEngine(answer)
    options = ("--embeddings", *(argv or ("--pooling", "mean")))
    return served(*options, engine=engine, **info), engine  # type: ignore[arg-type]


def error_of(response: Any) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["type"], error["message"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("body", [b'{"input": "a"}', b"{"])
def test_without_the_option_nothing_is_read(path: str, body: bytes) -> None:
    assert error_of(served().post(path, content=body)) == (501, "not_supported_error", NOT_STARTED)


@pytest.mark.parametrize("path", ROUTES)
def test_a_server_that_ranks_has_no_vectors(path: str) -> None:
    client = served("--rerank", engine=EmbeddingEngine(sums))  # type: ignore[arg-type]
    assert error_of(client.post(path, json={"input": "a"})) == (501, "not_supported_error", NOT_STARTED)


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_the_native_form(path: str) -> None:
    client, _ = with_embeddings()
    body = {"content": ["a", [1, 2], "bc"], "encoding_format": "base64"}
    assert client.post(path, json=body).json() == [
        {"index": 0, "embedding": [[BOS + 97.0, 2.0]]},
        {"index": 1, "embedding": [[3.0, 2.0]]},
        {"index": 2, "embedding": [[BOS + 98.0 + 99.0, 3.0]]},
    ]


def test_the_openai_form() -> None:
    client, _ = with_embeddings("--pooling", "mean", "--alias", "m")
    answer = client.post("/v1/embeddings", json={"input": ["a", [1, 2]], "dimensions": 1}).json()
    assert answer == {
        "model": "m",
        "object": "list",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
        "data": [
            {"embedding": [BOS + 97.0, 2.0], "index": 0, "object": "embedding"},
            {"embedding": [3.0, 2.0], "index": 1, "object": "embedding"},
        ],
    }
    for model, shown in (("other", "other"), (7, "m"), (None, "m")):
        assert client.post("/v1/embeddings", json={"input": "a", "model": model}).json()["model"] == shown


def test_base64_is_little_endian_floats() -> None:
    client, _ = with_embeddings(answer=lambda task: ([0.5, -1.25],))
    body = {"input": "a", "encoding_format": "base64"}
    (item,) = client.post("/v1/embeddings", json=body).json()["data"]
    assert list(item) == ["embedding", "index", "object", "encoding_format"]
    assert struct.unpack("<2f", base64.b64decode(item["embedding"])) == (0.5, -1.25)


def test_content_is_answered_natively_everywhere() -> None:
    client, _ = with_embeddings()
    assert client.post("/v1/embeddings", json={"content": [5]}).json() == [
        {"index": 0, "embedding": [[5.0, 1.0]]}
    ]
    assert client.post("/v1/embeddings", json={"content": [5], "input": [6]}).json()["object"] == "list"


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ("ab", [(BOS, 97, 98)]),
        ([97, 98], [(97, 98)]),
        ([97, "b", 99], [(97, 98, 99)]),
        (["a", 98], [(BOS, 97, 98)]),
        ([[97], "b"], [(97,), (BOS, 98)]),
        ({"prompt_string": "a"}, [(BOS, 97)]),
        ([{"prompt_string": [1, 2]}, [3]], [(1, 2), (3,)]),
        ("<tag>", [(BOS, 258)]),
    ],
)
def test_forms_of_the_input(value: Any, tokens: list[tuple[int, ...]]) -> None:
    client, engine = with_embeddings()
    assert client.post("/embedding", json={"input": value}).status_code == 200
    assert [run.task.tokens for run in engine.runs] == tokens
    assert all(run.task.is_embedding for run in engine.runs)


@pytest.mark.parametrize(
    ("given", "norm"),
    [({}, 5), ({"embd_normalize": -1}, -1), ({"embd_normalize": 2.7}, 2), ({"embd_normalize": True}, 1)],
)
def test_the_norm_of_the_request_or_the_option(given: dict[str, Any], norm: int) -> None:
    client, engine = with_embeddings("--pooling", "cls", "--embd-normalize", "5")
    client.post("/embedding", json={"input": "a", **given})
    assert engine.runs[0].task.embd_normalize == norm


FORM = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, '
    "or a list of mixed strings & tokens."
)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, '"input" or "content" must be provided'),
        ([], 400, '"input" or "content" must be provided'),
        ("input", 400, '"input" or "content" must be provided'),
        ({"input": None}, 500, FORM),
        ({"input": 5}, 500, FORM),
        ({"input": [1.5]}, 500, FORM),
        ({"input": ["a", None]}, 500, FORM),
        ({"input": []}, 500, '"prompt" must not be empty'),
        ({"input": [[]]}, 400, "Input content cannot be empty"),
        ({"input": [[], "a"]}, 400, "Input content cannot be empty"),
        ({"input": [300]}, 400, "Prompt contains invalid tokens"),
        ({"input": [[1], [-1]]}, 400, "Prompt contains invalid tokens"),
        (
            {"input": "a", "encoding_format": "hex"},
            400,
            "The format to return the embeddings in. Can be either float or base64",
        ),
        (
            {"input": "a", "encoding_format": 5},
            500,
            "[json.exception.type_error.302] type must be string, but is number",
        ),
        (
            {"input": "a", "embd_normalize": None},
            500,
            "[json.exception.type_error.302] type must be number, but is null",
        ),
    ],
)
def test_errors(path: str, body: Any, status: int, message: str) -> None:
    client, engine = with_embeddings()
    kind = "server_error" if status == 500 else "invalid_request_error"
    assert error_of(client.post(path, json=body)) == (status, kind, message)
    assert not engine.runs


def test_the_openai_form_needs_one_vector_a_prompt() -> None:
    message = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
    client, _ = with_embeddings("--pooling", "none")
    for body in (b'{"input": "a"}', b"{"):
        assert error_of(client.post("/v1/embeddings", content=body)) == (
            400,
            "invalid_request_error",
            message,
        )
    assert client.post("/embedding", json={"input": "a"}).status_code == 200


def test_the_model_decides_the_pooling_without_the_option() -> None:
    for pooling, status in (("cls", 200), ("", 400), ("rank", 501)):
        client, _ = with_embeddings("-c", "0", pooling=pooling)
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == status


def test_a_failure_of_one_prompt_ends_the_others() -> None:
    def answer(task: Task) -> Answer:
        if len(task.tokens) == 1:
            return Failed(
                task.id, "exceed_context_size_error", "too long", {"n_prompt_tokens": 9, "n_ctx": 4}
            )
        return ()

    client, engine = with_embeddings(answer=answer)
    response = client.post("/v1/embeddings", json={"input": [[1, 2], [3], [4, 5]]})
    fields = {"code": 400, "message": "too long", "type": "exceed_context_size_error"}
    assert response.json() == {"error": {**fields, "n_prompt_tokens": 9, "n_ctx": 4}}
    assert [run.cancelled for run in engine.runs] == [True, True, True]
