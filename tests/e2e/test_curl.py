"""The calls of llama.cpp's own README, made with curl."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")

JSON_HEADER = ("--header", "Content-Type: application/json")


def curl(server: Server, path: str, *arguments: str) -> str:
    command = ["curl", "--silent", "--show-error", "--max-time", "120", *arguments, server.url + path]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=150).stdout


def curl_json(server: Server, path: str, body: Any = None) -> Any:
    arguments = [] if body is None else ["--request", "POST", *JSON_HEADER, "--data", json.dumps(body)]
    return json.loads(curl(server, path, *arguments))


def test_health(server: Server) -> None:
    assert curl_json(server, "/health") == {"status": "ok"}


def test_completion(server: Server) -> None:
    body = {"prompt": "The capital of France is", "n_predict": 8, "top_k": 1}
    answer = curl_json(server, "/completion", body)
    assert answer["content"].startswith(" Paris")
    assert answer["tokens_predicted"] == 8
    assert answer["timings"]["cache_n"] + answer["timings"]["prompt_n"] == answer["tokens_evaluated"]


def test_completion_stream(server: Server) -> None:
    body = {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0, "stream": True}
    text = curl(server, "/completion", "--no-buffer", *JSON_HEADER, "--data", json.dumps(body))
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line]
    assert "".join(event["content"] for event in events).startswith(" Paris")
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_chat_stream_ends_with_done(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": True}
    text = curl(server, "/v1/chat/completions", "--no-buffer", *JSON_HEADER, "--data", json.dumps(body))
    assert text.endswith("data: [DONE]\n\n")


def test_tokenize_and_back(server: Server) -> None:
    text = "Grüße, world! 🙂\n  indented"
    tokens = curl_json(server, "/tokenize", {"content": text})["tokens"]
    assert tokens and all(isinstance(token, int) for token in tokens)
    assert curl_json(server, "/detokenize", {"tokens": tokens}) == {"content": text}


def test_apply_template(server: Server) -> None:
    answer = curl_json(server, "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
    assert answer["prompt"].endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_props_slots_and_metrics(server: Server) -> None:
    props = curl_json(server, "/props")
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert [slot["id"] for slot in curl_json(server, "/slots")] == [0, 1, 2, 3]
    assert "# TYPE llamacpp:prompt_tokens_total counter" in curl(server, "/metrics")


def test_a_broken_body_is_an_error_object(server: Server) -> None:
    error = json.loads(curl(server, "/completion", *JSON_HEADER, "--data", "{"))["error"]
    assert error["code"] == 500 and error["type"] == "server_error"
    assert curl_json(server, "/health") == {"status": "ok"}


def test_an_unknown_route_is_404(server: Server) -> None:
    error = {"message": "File Not Found", "type": "not_found_error", "code": 404}
    assert curl_json(server, "/no-such-route") == {"error": error}
