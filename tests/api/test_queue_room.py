"""``--max-queue``: whoever would wait behind too many is told to come again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.served import served

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def engine(n_open: int) -> FakeEngine:
    made = FakeEngine("ok", n_slots=4)
    made.n_open = n_open
    return made


@pytest.mark.parametrize(
    ("n_open", "body", "status"),
    [
        (5, {"prompt": "a"}, 200),
        (6, {"prompt": "a"}, 503),
        (3, {"prompt": ["a", "b", "c"]}, 200),
        (4, {"prompt": ["a", "b", "c"]}, 503),
        (4, {"prompt": "a", "n_cmpl": 3}, 503),
        (6, {"prompt": "a", "stream": True}, 503),
    ],
)
def test_two_may_wait_for_four_slots(n_open: int, body: dict[str, Any], status: int) -> None:
    used = engine(n_open)
    answer = served("--max-queue", "2", engine=used).post("/completion", json=body)
    assert answer.status_code == status
    if status == 503:
        assert answer.headers["retry-after"] == "1"
        error = {"code": 503, "message": "The queue is full (--max-queue 2)", "type": "unavailable_error"}
        assert answer.json() == {"error": error}
        assert used.runs == []


def test_without_the_option_any_number_waits() -> None:
    assert served(engine=engine(10_000)).post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_chats(path: str) -> None:
    client = served("--max-queue", "1", engine=engine(5))
    answer = client.post(path, json=CHAT | {"max_tokens": 5})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
