"""Large requests are worked on beside the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mlxserver.api import aside, completion_runner
from tests.api.fake_engine import ByteTokenizer, FakeEngine
from tests.api.served import served

LONG = "a" * 300
MESSAGES = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", MESSAGES),
        ("/v1/chat/completions/input_tokens", MESSAGES),
        ("/v1/messages", MESSAGES),
        ("/v1/messages/count_tokens", MESSAGES),
        ("/v1/responses", {"input": LONG}),
        ("/v1/responses/input_tokens", {"input": LONG}),
        ("/tokenize", {"content": LONG}),
    ],
)
@pytest.mark.parametrize("is_large", [True, False])
def test_long_texts_are_tokenized_in_another_thread(
    path: str, body: dict[str, Any], is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aside, "LARGE", 200 if is_large else 10_000)
    threads: set[bool] = set()

    class Watched(ByteTokenizer):
        def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
            if LONG in text:
                threads.add(threading.current_thread().name.startswith(aside.THREAD))
            return super().encode(text, add_special, parse_special)

    monkeypatch.setattr("tests.api.fake_engine.ByteTokenizer", Watched)
    client = served(engine=FakeEngine("ok"))
    assert client.post(path, json=body).status_code == 200
    assert threads == {is_large}


def test_answers_with_many_candidates_are_made_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    made = completion_runner.json_response

    def watched(value: Any) -> Any:
        threads.append(threading.current_thread().name)
        return made(value)

    monkeypatch.setattr(completion_runner, "json_response", watched)
    for n_probs in (20, 30):
        answer = served(engine=FakeEngine("a" * 80)).post(
            "/completion", json={"prompt": "a", "n_probs": n_probs}
        )
        assert len(answer.json()["completion_probabilities"]) == 80
    assert [name.startswith(aside.THREAD) for name in threads] == [False, True]


def test_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LARGE", 5)
    answer = served().post("/completion", json={"prompt": "a", "max_tokens": -2})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert served().post("/completion", content=b'{"prompt":' + b" " * 10).status_code == 500
