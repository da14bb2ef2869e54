"""Faults of a request that llama-server calls its own, and ``--strict-http``, which gives them back."""

from __future__ import annotations

from typing import Any

import pytest
from httpx import Response

from mlxserver.engine.task import Failed
from tests.api.fake_engine import FakeEngine
from tests.api.served import served

USER = {"role": "user", "content": "a"}
FAULTS: list[tuple[str, Any]] = [
    ("/completion", b"{"),
    ("/completion", b""),
    ("/completion", b'{"prompt":"\xff"}'),
    ("/v1/completions", b'{"prompt":1e999}'),
    ("/v1/chat/completions", b"["),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}),
    ("/v1/chat/completions", {"messages": [USER], "tools": [1]}),
    ("/v1/chat/completions", {"messages": [USER], "reasoning_format": "x"}),
    ("/v1/chat/completions", {"messages": [USER | {"content": [{"type": "image_url"}]}]}),
    ("/apply-template", {"messages": [{"content": "a"}]}),
    ("/v1/messages", {}),
    ("/tokenize", {"content": {}}),
    ("/detokenize", {"tokens": "a"}),
    ("/lora-adapters", b"x"),
    ("/slots/0?action=save", {}),
]


def ask(path: str, body: Any, *argv: str) -> Response:
    client = served("--slot-save-path", ".", *argv)
    answer = client.post(path, content=body) if isinstance(body, bytes) else client.post(path, json=body)
    return Response(answer.status_code, json=answer.json())


@pytest.mark.parametrize(("path", "body"), FAULTS)
def test_a_fault_is_the_servers_unless_strict(path: str, body: Any) -> None:
    plain, strict = ask(path, body), ask(path, body, "--strict-http")
    error = plain.json()["error"]
    assert (plain.status_code, error["code"], error["type"]) == (500, 500, "server_error")
    assert strict.status_code == 400
    assert strict.json()["error"] == error | {"code": 400, "type": "invalid_request_error"}


def test_what_the_server_fails_at_stays_its_own() -> None:
    engine = FakeEngine(Failed(0, "server_error", "Compute error."))
    answer = served("--strict-http", engine=engine).post("/completion", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


def test_a_task_that_failed_by_its_request() -> None:
    failed = Failed(0, "server_error", "input (9 tokens) is too large to process.", is_fault_of_request=True)
    for argv, status in (((), 500), (("--strict-http",), 400)):
        answer = served(*argv, engine=FakeEngine(failed)).post("/completion", json={"prompt": "a"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, failed.message)


def test_other_errors_are_the_same() -> None:
    plain, strict = ask("/completion", {"prompt": 1}), ask("/completion", {"prompt": 1}, "--strict-http")
    assert plain.status_code == strict.status_code == 400
    assert plain.json() == strict.json()
