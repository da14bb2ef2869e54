"""Requests made from /openapi.json, right and wrong ones: no 5xx but llama-server's own, and nothing breaks.

MLXSERVER_FUZZ_EXAMPLES asks for more requests than the few of a usual run.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from mlxserver.api.routes import ROUTES, Route
from tests.e2e.server import Server, running_server
from tests.models.gguf_files import KINDS, write

EXAMPLES = int(os.environ.get("MLXSERVER_FUZZ_EXAMPLES", "3"))
"""Requests of each kind to each route."""

OF_THE_REFERENCE = [
    (500, r"\[json\.exception\.\w+\.\d+\] "),
    (500, r"Failed to parse (messages|tools): "),
    (500, r"Unknown reasoning format: "),
    (500, r"Cannot use both json_schema and grammar"),
    (500, r"(image|audio|video) input is not supported - hint: "),
    (500, r"'messages' is required"),
    (500, r"\"prompt\" (elements must be|must not be empty)"),  # of embeddings; completions say 400
    (500, r"Prompt contains invalid tokens"),  # of detokenize, where llama-server names the vector's size
    (500, r"input \(\d+ tokens\) is too large to process\. "),  # of embeddings
    (501, r"This server does not support reranking\. "),
    (501, r"The current model does not support audio input\."),
    (503, r"no slot available"),
]
"""The statuses above 499 that llama-server answers requests with, and the beginnings of their messages."""

FIM = ",".join(
    f"tokenizer.ggml.{name}_token_id=int:{i}" for i, name in enumerate(("prefix", "suffix", "middle"))
)
ARGUMENTS = (
    "-c 256 -np 2 --slots --metrics --props --embeddings --pooling mean --chat-template chatml --override-kv"
)
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
ROUTES_THAT_READ = [route for route in ROUTES if route.takes]
COUNTS: Counter[int] = Counter()


def name_of(value: Any) -> str:
    return f"{value.method} {value.paths[0]}" if isinstance(value, Route) else value.value


@contextmanager
def tiny_server(folder: Path, *options: str) -> Iterator[tuple[Server, Any]]:
    """A server and the schema that it gives of itself."""
    write(folder / "tiny.gguf", KINDS["llama"])
    arguments = [*ARGUMENTS.split(), FIM, "--slot-save-path", str(folder), *options]
    with running_server(folder / "tiny.gguf", folder / "log", *arguments) as running:
        yield running, schemathesis.openapi.from_dict(httpx.get(f"{running.url}/openapi.json").json())
        assert not running.busy()
    assert "Traceback" not in (folder / "log").read_text(errors="replace")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    with tiny_server(tmp_path_factory.mktemp("plain")) as served:
        yield served
    print(f"answers: {dict(sorted(COUNTS.items()))}", file=sys.stderr)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    with tiny_server(tmp_path_factory.mktemp("strict"), "--strict-http") as served:
        yield served


@pytest.mark.parametrize("mode", [RIGHT, WRONG], ids=name_of)
@pytest.mark.parametrize("route", ROUTES_THAT_READ, ids=name_of)
def test_no_request_breaks_the_server(plain: tuple[Server, Any], route: Route, mode: GenerationMode) -> None:
    for answer in answers(plain, route, mode):
        assert answer.status_code < 500 or is_of_the_reference(answer), answer.text


@pytest.mark.parametrize("route", ROUTES_THAT_READ, ids=name_of)
def test_a_strict_server_never_takes_the_blame(strict: tuple[Server, Any], route: Route) -> None:
    for answer in answers(strict, route, WRONG):
        assert answer.status_code != 500, answer.text
        assert answer.status_code < 500 or is_of_the_reference(answer), answer.text


def answers(served: tuple[Server, Any], route: Route, mode: GenerationMode) -> list[Any]:
    server, schema = served
    found: list[Any] = []

    @settings(
        max_examples=EXAMPLES,
        derandomize=EXAMPLES < 10,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=schema[route.paths[0]][route.method].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=server.url, timeout=60)
        COUNTS[answer.status_code] += 1
        found.append(answer)

    ask()
    return found


def is_of_the_reference(answer: Any) -> bool:
    message = answer.json()["error"]["message"]
    return any(answer.status_code == status and re.match(text, message) for status, text in OF_THE_REFERENCE)
