from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.api.rerank import rerank_prompt
from mlxserver.engine.task import Task
from tests.api.embedding_engine import Answer, EmbeddingEngine
from tests.api.fake_engine import BOS, EOS, ByteTokenizer
from tests.api.served import served
from tests.api.test_embeddings import error_of

ROUTES = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
NO_DOCUMENTS = '"documents" must be a non-empty string array'


def by_length(task: Task) -> Answer:
    return ([float(len(task.tokens)), -1.0],)


def ranker(*argv: str) -> TestClient:
    return served("--rerank", *argv, engine=EmbeddingEngine(by_length))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("argv", [(), ("--embeddings",), ("--embeddings", "--pooling", "cls")])
def test_without_the_option_nothing_is_read(path: str, argv: tuple[str, ...]) -> None:
    message = "This server does not support reranking. Start it with `--reranking`"
    assert error_of(served(*argv).post(path, content=b"{")) == (501, "not_supported_error", message)


@pytest.mark.parametrize("path", ROUTES)
def test_the_form_of_jina(path: str) -> None:
    body = {"query": "q", "documents": ["a", "ccc", "bb"]}
    assert ranker("--alias", "m").post(path, json=body).json() == {
        "model": "m",
        "object": "list",
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
        "results": [
            {"index": 1, "relevance_score": 5.0},
            {"index": 2, "relevance_score": 4.0},
            {"index": 0, "relevance_score": 3.0},
        ],
    }


def test_the_form_of_tei() -> None:
    client, body = ranker(), {"query": "q", "texts": ["a", "bb"]}
    plain = [{"index": 1, "score": 4.0}, {"index": 0, "score": 3.0}]
    assert client.post("/rerank", json=body).json() == plain
    assert client.post("/rerank", json={**body, "return_text": "yes"}).json() == plain
    with_texts = client.post("/rerank", json={**body, "return_text": True, "top_n": 1}).json()
    assert with_texts == [{"index": 1, "score": 4.0, "text": "bb"}]
    both = client.post("/rerank", json={**body, "documents": ["xyz"], "return_text": True}).json()
    assert both == [{"index": 0, "score": 5.0, "text": "xyz"}]


@pytest.mark.parametrize(
    ("top_n", "left"), [(1, 1), (0, 0), (9, 2), (1.9, 1), ("1", 2), (None, 2), (True, 1)]
)
def test_only_the_best(top_n: Any, left: int) -> None:
    answer = ranker().post("/rerank", json={"query": "q", "documents": ["a", "b"], "top_n": top_n}).json()
    assert len(answer["results"]) == left
    assert answer["usage"]["total_tokens"] == 6


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"documents": ["a"]}, 400, '"query" must be provided'),
        ([], 400, '"query" must be provided'),
        (5, 400, '"query" must be provided'),
        ({"query": 5, "documents": ["a"]}, 400, '"query" must be a string'),
        ({"query": None, "documents": ["a"]}, 400, '"query" must be a string'),
        ({"query": "q"}, 400, NO_DOCUMENTS),
        ({"query": "q", "documents": []}, 400, NO_DOCUMENTS),
        ({"query": "q", "documents": "a"}, 400, NO_DOCUMENTS),
        ({"query": "q", "documents": ["a", 1]}, 400, NO_DOCUMENTS),
        ({"query": "q", "documents": ["a"], "top_n": -1}, 500, "vector::_M_default_append"),
    ],
)
def test_errors(body: Any, status: int, message: str) -> None:
    kind = "server_error" if status == 500 else "invalid_request_error"
    assert error_of(ranker().post("/rerank", json=body)) == (status, kind, message)


def test_documents_of_a_wrong_type_leave_the_texts() -> None:
    answer = ranker().post("/rerank", json={"query": "q", "documents": 5, "texts": ["a"]}).json()
    assert answer == [{"index": 0, "score": 3.0}]


def prompt(template: str = "", **vocabulary: Any) -> tuple[int, ...]:
    tokenizer = ByteTokenizer()
    for name, value in vocabulary.items():
        setattr(tokenizer, name, value)
    model: Any = SimpleNamespace(tokenizer=tokenizer, info=SimpleNamespace(rerank_template=template))
    return rerank_prompt(model, "q", "<s>")


DOCUMENT = tuple(b"<s>")


def test_both_texts_with_the_special_tokens_that_the_vocabulary_adds() -> None:
    q = ord("q")
    assert prompt() == (BOS, q, *DOCUMENT)
    assert prompt(add_eos=True) == (BOS, q, EOS, *DOCUMENT, EOS)
    assert prompt(add_eos=True, add_sep=True, sep_id=7) == (BOS, q, EOS, 7, *DOCUMENT, EOS)
    assert prompt(add_eos=True, eos_id=-1, sep_id=7) == (BOS, q, 7, *DOCUMENT, 7)
    assert prompt(add_bos=False, add_sep=True, sep_id=7) == (q, 7, *DOCUMENT)


def test_the_models_template_goes_first() -> None:
    assert prompt("<s>{document}|{query}") == (BOS, BOS, ord("|"), ord("q"))
