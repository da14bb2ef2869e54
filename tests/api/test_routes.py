"""The route table: complete, and the same in the compatibility manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxserver.api.routes import ROUTES, Route
from mlxserver.api.unavailable import absent
from tests.api.served import served

MANIFEST = Path(__file__).parents[2] / "compat/llama-server/b10621/routes.json"
POSTS = [(path, route) for route in ROUTES for path in route.paths if route.method == "POST"]


def test_the_manifest_is_made_of_the_table() -> None:
    assert json.loads(MANIFEST.read_text(encoding="utf-8")) == [route.row() for route in ROUTES]


def test_every_path_has_one_route_a_method() -> None:
    keys = [(route.method, path) for route in ROUTES for path in route.paths]
    assert len(keys) == len(set(keys))


def test_every_route_that_is_not_honoured_says_why() -> None:
    assert not [route.paths for route in ROUTES if route.state != "honoured" and not route.note]


@pytest.mark.parametrize(("path", "route"), POSTS)
def test_what_is_not_honoured_answers_as_it_says(path: str, route: Route) -> None:
    if route.state == "honoured":
        return
    response = served().post(path.replace("{id_slot}", "0"), json={})
    status = 404 if route.handler is absent else 403 if "403" in route.note else 501
    assert response.status_code == status


def test_features_that_are_off() -> None:
    client = served()
    error = {"error": {"message": "this feature is disabled", "type": "feature_disabled"}}
    for path in ("/tools", "/cors-proxy"):
        assert client.get(path).json() == client.post(path, json={}).json() == error
        assert client.get(path).status_code == 403
    audio = client.post("/v1/audio/transcriptions", json={})
    assert audio.json()["error"]["message"] == "The current model does not support audio input."
