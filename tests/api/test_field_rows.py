"""The manifest of fields holds every key that the code reads or writes, at its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Response

from mlxserver.api.field_rows import FieldRow, Place, field_rows, rows_of
from mlxserver.api.own_routes import OWN_ROUTES
from mlxserver.api.routes import ROUTES, Route
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import served
from tests.api.source_keys import PACKAGE, emitted, named, read

APART = frozenset(
    "app aside auth completion_defaults completion_request completion_runner cors errors field_rows "
    "field_types gates hosts json_body json_response json_schemas openapi own_routes router routes sse "
    "sse_frame state stream_replay tenant".split()
)
"""Modules of api/ that shape no answer and read no request's fields."""

MODULES = [
    *(f"api/{path.stem}" for path in sorted((PACKAGE / "api").glob("*.py")) if path.stem not in APART),
    "chat/messages",
    "chat/request",
]
NO_FIELDS = frozenset({"body", "chat", "more_body", "reasoning_budget", "sampling", "prefix", "middle"})
"""Keys of other objects than requests and answers."""

NAMES = {part for row in field_rows() for name in row.names for part in name.split("/")}


def fields(keys: set[str]) -> set[str]:
    return {key for key in keys if key.replace(".", "").isidentifier()} - NO_FIELDS


@pytest.mark.parametrize("module", MODULES)
def test_every_key_of_the_source_has_a_row(module: str) -> None:
    assert fields(emitted(module) | read(module)) <= NAMES


def test_every_honoured_field_is_named_in_the_source() -> None:
    files = [path for folder in ("api", "chat") for path in (PACKAGE / folder).rglob("*.py")]
    found = {name.lower() for path in files for name in named(path)} | {""}
    honoured = (name for row in field_rows() if row.state == "honoured" for name in row.names)
    assert [name for name in honoured if not {part.lower() for part in name.split("/")} <= found] == []


def test_every_field_has_one_row() -> None:
    keys = [(row.api, row.place, name) for row in field_rows() for name in row.names]
    assert len(keys) == len(set(keys))


def test_every_row_says_what_the_field_is() -> None:
    assert not [(row.api, row.names) for row in field_rows() if not row.ref and "type" not in row.schema]
    assert not [row.names for row in field_rows() if row.state != "honoured" and not row.reason]


def test_every_row_belongs_to_a_route() -> None:
    used = {api for route in (*ROUTES, *OWN_ROUTES) for api in (route.takes, route.gives)} | {"vertex"}
    assert {row.api for row in field_rows() if row.place != "shared"} <= used


def shape(api: str, place: Place) -> dict[str, FieldRow]:
    return {name: row for row in rows_of(api, place) for name in row.names}


def strangers(value: Any, rows: dict[str, FieldRow], path: str = "") -> Iterator[str]:
    """The paths in ``value`` that have no row; what a row leaves open is not looked at."""
    if isinstance(value, list):
        for item in value:
            yield from strangers(item, rows, path)
    if not isinstance(value, dict):
        return
    is_open = path and not any(name.startswith(f"{path}/") for name in rows)
    for key, item in {} if is_open else value.items():
        inner = f"{path}/{key}" if path else key
        row = rows.get(inner)
        if row is None:
            yield inner
        elif row.ref:
            yield from (f"{inner}:{name}" for name in strangers(item, referred(row.ref)))
        else:
            yield from strangers(item, rows, inner)


def referred(name: str) -> dict[str, FieldRow]:
    shared = shape(name, "shared")
    api, _, place = name.rpartition("_")
    return shared or shape(api, "response" if place == "response" else "event")


def events(response: Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


CALL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "a"}]
EXTRAS = {"timings_per_token": True, "return_progress": True, "verbose": True, "n_probs": 2}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "abcdef", "return_tokens": True, **EXTRAS}),
    (
        "/completion",
        {"prompt": ["a", "b"], "post_sampling_probs": True, "logit_bias": [[1, False]], **EXTRAS},
    ),
    ("/v1/completions", {"prompt": "a", **EXTRAS}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream_options": {"include_usage": True}, **EXTRAS}),
    ("/v1/messages", {"messages": MESSAGES}),
    ("/v1/responses", {"input": "a", **EXTRAS}),
]
ANSWERS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/chat/completions/control", {"id": "x", "action": "reasoning_end"}),
    ("POST", "/v1/chat/completions/input_tokens", {"messages": MESSAGES}),
    ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("POST", "/v1/responses/input_tokens", {"input": "a"}),
    ("POST", "/apply-template", {"messages": MESSAGES}),
    ("POST", "/tokenize", {"content": "a", "with_pieces": True}),
    ("POST", "/detokenize", {"tokens": [97]}),
    ("POST", "/props", {}),
    ("GET", "/health", {}),
    ("GET", "/props", {}),
    ("GET", "/v1/models", {}),
    ("GET", "/lora-adapters", {}),
]


def route_of(method: str, path: str) -> Route:
    return next(route for route in ROUTES if route.method == method and path in route.paths)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_answers_and_events_have_no_other_keys(path: str, body: dict[str, Any], stream: bool) -> None:
    route = route_of("POST", path)
    api = route.gives or route.takes
    client = served("--jinja", engine=FakeEngine([*b"ok", EOS], n_disk=0))
    answer = client.post(path, json={**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    shown = events(answer) if stream else [answer.json()]
    assert shown
    rows = shape(api, "event" if stream else "response")
    assert sorted({name for value in shown for name in strangers(value, rows)}) == []


@pytest.mark.parametrize(("method", "path", "body"), ANSWERS)
def test_other_answers_have_no_other_keys(method: str, path: str, body: dict[str, Any]) -> None:
    route = route_of(method, path)
    client = served("--props")
    answer = client.post(path, json=body) if method == "POST" else client.get(path)
    assert answer.status_code == 200, answer.text
    assert sorted(strangers(answer.json(), shape(route.gives or route.takes, "response"))) == []


def test_errors_have_no_other_keys() -> None:
    answer = served().post("/completion", json={"prompt": 1}).json()
    assert sorted(strangers(answer, shape("error", "shared"))) == []


def test_a_key_without_a_row_is_found() -> None:
    rows = shape("chat", "response")
    assert list(strangers({"choices": [{"message": {"new": 1}}], "usage": {"more": 2}}, rows)) == [
        "choices/message/new",
        "usage:more",
    ]
