"""Prompts and keys are in no log, no metric, and nobody else's answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from mlxserver.api.app import make_app
from mlxserver.engine.task import SlotView
from mlxserver.options import help as options_help
from mlxserver.telemetry import log
from tests.api.served import WatchedEngine, served_state
from tests.telemetry.test_log import logging_as_before  # noqa: F401

KEY, TOKEN = "key-marker-1234", "hf-marker-5678"
MARKER = "prompt-marker-7f3a"
CHAT = {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 4}
REQUESTS: list[tuple[str, Any]] = [
    ("/completion", {"prompt": MARKER, "n_predict": 2}),
    ("/completion", {"prompt": MARKER, "stream": True}),
    ("/completion", {"prompt": [MARKER, {"x": MARKER}]}),
    ("/completion", {"prompt": "a", "grammar": f'root ::= "{MARKER}'}),
    ("/completion", {"prompt": "a", "json_schema": {"type": MARKER}}),
    ("/completion", {"prompt": "a", "stop": [MARKER], "samplers": [MARKER], MARKER: MARKER}),
    ("/completion", {"prompt": MARKER, "n_predict": "x"}),
    ("/v1/completions", {"prompt": MARKER}),
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": MARKER, "content": [MARKER]}]}),
    ("/v1/messages", CHAT | {"model": MARKER, "system": MARKER}),
    ("/v1/responses", {"input": MARKER, "instructions": MARKER}),
    ("/apply-template", CHAT),
    ("/tokenize", {"content": MARKER}),
    ("/infill", {"input_prefix": MARKER, "input_suffix": MARKER}),
    ("/embeddings", {"input": MARKER}),
    ("/rerank", {"query": MARKER, "documents": [MARKER]}),
    ("/slots/0?action=save", {"filename": "../" + MARKER}),
    ("/lora-adapters/load", {"name": MARKER}),
    ("/v1/streams/lookup", {"conversation_ids": [MARKER]}),
]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[TestClient, Path]]:
    """A server that logs all it can into a file."""
    file = tmp_path / "log"
    argv = ["--api-key", f"{KEY},other", "--metrics", "--slot-save-path", str(tmp_path), "-v"]
    argv += ["--lora-dir", str(tmp_path), "--log-file", str(file), "-hft", TOKEN]
    state = served_state(*argv, engine=WatchedEngine(SlotView(0, 512, False, 3)))
    log.configure(state.options)
    yield TestClient(make_app(state), raise_server_exceptions=False), file


def test_nothing_that_the_server_writes_tells_them(
    client: tuple[TestClient, Path], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    served, file = client
    caplog.set_level(logging.DEBUG, "mlxserver")
    headers = {"Authorization": f"Bearer {KEY}", "X-Conversation-Id": MARKER}
    for path, body in REQUESTS:
        served.post(path, json=body, headers=headers)
        served.post(path, content=f'{{"prompt":"{MARKER}'.encode(), headers=headers)
    served.post("/completion", json=CHAT, headers={"Authorization": f"Bearer {MARKER}"})
    mine = [record for record in caplog.records if record.name.startswith(("mlxserver", "uvicorn"))]
    written = file.read_text() + "".join(map(str, capfd.readouterr()))
    written += "".join(record.getMessage() for record in mine)
    assert "done request: POST /v1/messages" in written
    others = {"Authorization": "Bearer other"}
    for path in ("/metrics", "/props", "/slots", "/models", "/lora-adapters", "/openapi.json", "/v1/health"):
        written += served.get(path, headers=others).text
    written += served.post("/completion", json={"prompt": "b", "n_predict": 2}, headers=others).text
    for secret in (MARKER, KEY, TOKEN):
        assert secret not in written


def test_help_shows_no_value_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, KEY)
    assert KEY not in options_help.help_text()


def test_what_a_client_names_cannot_forge_a_line(client: tuple[TestClient, Path]) -> None:
    served, file = client
    headers = {"Authorization": f"Bearer {KEY}"}
    served.get("/a%0A0.00.000.000%20E%20srv%20forged%1B%5B31m%00" + "b" * 5000, headers=headers)
    lines = file.read_text().splitlines()
    [line] = [line for line in lines if "forged" in line and "done request" in line]
    assert "GET /a\\n0.00.000.000 E srv forged\\x1b[31m\\x00bbb" in line
    assert len(line) < 400
