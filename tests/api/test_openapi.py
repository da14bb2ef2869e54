"""``/openapi.json`` and ``/docs``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from mlxserver.api.own_routes import OWN_ROUTES
from mlxserver.api.routes import ROUTES
from mlxserver.options.table import compat_text
from tests.api.served import served

KEY = {"X-Api-Key": "secret"}


@pytest.fixture(scope="module")
def document() -> Any:
    return served("--temp", "0.25").get("/openapi.json").json()


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described


def test_every_route_is_there_under_all_its_names(document: Any) -> None:
    found = {(method, path) for method, path, _ in operations(document)}
    assert found == {(r.method, path) for r in (*ROUTES, *OWN_ROUTES) for path in r.paths}


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does(document: Any) -> None:
    found = [described for _, _, described in operations(document)]
    assert len({described["operationId"] for described in found}) == len(found)
    assert not [d["operationId"] for d in found if not d["summary"] and "x-mlxserver" not in d]


def test_every_reference_leads_to_a_schema(document: Any) -> None:
    names = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert names and names <= document["components"]["schemas"].keys()


def test_defaults_are_those_of_the_command_line(document: Any) -> None:
    assert document["components"]["schemas"]["chat_body"]["properties"]["temperature"]["default"] == 0.25


def test_what_a_request_takes_besides_its_body(document: Any) -> None:
    slot = document["paths"]["/slots/{id_slot}"]["post"]["parameters"]
    assert [(p["name"], p["in"], p["required"]) for p in slot] == [
        ("id_slot", "path", True),
        ("action", "query", True),
    ]
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert [p["name"] for p in chat["parameters"]] == ["X-Conversation-Id"]
    assert chat["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


def test_deferred_routes_say_so(document: Any) -> None:
    assert document["paths"]["/tools"]["post"]["x-mlxserver"]["state"] == "deferred"
    assert "x-mlxserver" not in document["paths"]["/tokenize"]["post"]


def test_the_description_needs_a_key_and_the_page_does_not() -> None:
    client = served("--api-key", "secret")
    assert client.get("/openapi.json").status_code == 401
    document = client.get("/openapi.json", headers=KEY).json()
    assert document["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/props"]["get"]
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_prefix_is_the_address_of_the_server() -> None:
    document = served("--api-prefix", "/p").get("/p/openapi.json").json()
    assert document["servers"] == [{"url": "/p"}]
    assert served("--api-prefix", "/p").get("/openapi.json").status_code == 404


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = served().get("/docs").text
    assert "://" not in page
    assert not re.search(r"\b(?:src|href)=|@import|url\(", page)
    assert 'fetch("openapi.json"' in page


def test_the_manifest_is_made_of_the_table() -> None:
    assert json.loads(compat_text("mlxserver/routes.json")) == [route.row() for route in OWN_ROUTES]
