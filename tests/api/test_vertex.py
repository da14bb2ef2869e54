"""Vertex AI's predict route over a scripted engine."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.api.app import make_app
from mlxserver.api.vertex import format_of
from mlxserver.options.vertex import VertexAi
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import served_state

CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "hi"}]}


def predicting(*argv: str, health: str = "/ping") -> TestClient:
    state = served_state(*argv, engine=FakeEngine([*b"ok", EOS]))
    return TestClient(make_app(state, VertexAi(health, "/predict", 8080)), raise_server_exceptions=False)


def predict(*instances: Any) -> Any:
    response = predicting().post("/predict", json={"instances": list(instances)})
    assert response.status_code == 200
    return response.json()["predictions"]


def message_of(prediction: Any) -> str:
    text: str = prediction["error"]["message"]
    return text


def test_each_instance_is_answered_by_its_route() -> None:
    completion = {"@requestFormat": "/completion", "prompt": "a"}
    chat, native, health, tokens = predict(
        CHAT, completion, {"@requestFormat": "health"}, {"@requestFormat": "tokenize", "content": "a"}
    )
    assert chat["choices"][0]["message"]["content"] == "ok"
    assert (native["content"], health, tokens) == ("ok", {"status": "ok"}, {"tokens": [97]})


def test_streams_are_answered_plainly() -> None:
    [chat] = predict(CHAT | {"stream": True})
    assert chat["object"] == "chat.completion"


def test_an_instance_that_fails_spoils_no_other() -> None:
    answers = predict(
        5, {}, {"@requestFormat": 5}, {"@requestFormat": "x"}, {"@requestFormat": "completion"}, CHAT
    )
    assert [message_of(answer) for answer in answers[:-1]] == [
        "each instance must be a JSON object",
        "each instance must include a string @requestFormat",
        "each instance must include a string @requestFormat",
        "no handler registered for @requestFormat: x",
        "[json.exception.out_of_range.403] key 'prompt' not found",
    ]
    assert "choices" in answers[-1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "[json.exception.parse_error.101]"),
        (b"[]", "request body must be a JSON object"),
        (b'{"instances": {}}', "request body must include an array field named instances"),
        (b'{"instances": [%s]}' % b",".join([b"1"] * 129), "instances array exceeds maximum size of 128"),
    ],
)
def test_bodies_that_are_none(body: bytes, message: str) -> None:
    response = predicting().post("/predict", content=body)
    assert response.status_code == 400
    assert message_of(response.json()).startswith(message)


def test_a_further_health_route() -> None:
    assert predicting().get("/ping").json() == {"status": "ok"}
    assert predicting(health="").get("/ping").status_code == 404


def test_predictions_need_the_key() -> None:
    client = predicting("--api-key", "k")
    assert client.post("/predict", json={"instances": []}).status_code == 401
    headers = {"Authorization": "Bearer k"}
    assert client.post("/predict", json={"instances": []}, headers=headers).json() == {"predictions": []}


def test_a_route_that_is_taken() -> None:
    with pytest.raises(ValueError, match="AIP_PREDICT_ROUTE=/props conflicts"):
        make_app(served_state(), VertexAi("", "/props", 8080))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/v1/messages/count_tokens", "messagesCountTokens"),
        ("/health", "health"),
    ],
)
def test_names_of_formats(path: str, name: str) -> None:
    assert format_of(path) == name
