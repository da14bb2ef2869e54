"""Large requests are worked on beside the event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mlxserver.api import aside
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


def test_errors_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LARGE", 5)
    answer = served().post("/completion", json={"prompt": "a", "max_tokens": -2})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert served().post("/completion", content=b'{"prompt":' + b" " * 10).status_code == 500
