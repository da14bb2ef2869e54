"""The manifest of request fields and the code that reads them agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxserver.api.completion_schema import FIELDS
from mlxserver.options.table import compat_text
from tests.api.served import served

ROWS: list[dict[str, Any]] = json.loads(compat_text("llama-server/b10621/fields.json"))
COMPLETION = [row for row in ROWS if row["api"] == "completion"]
DEFERRED = {name for row in ROWS if row["state"] == "deferred" for name in row["names"]}


def test_every_field_that_is_read_has_a_row() -> None:
    rows = {tuple(row["names"]) for row in COMPLETION}
    assert {field.names for field in FIELDS} <= rows


def test_what_is_not_honoured_says_why() -> None:
    assert not [row["names"] for row in ROWS if row["state"] != "honoured" and not row.get("reason")]


@pytest.mark.parametrize(
    "wanted",
    [
        {"grammar": 'root ::= "x"'},
        {"json_schema": {"type": "object"}},
        {"n_cache_reuse": 8},
        {"reasoning_budget_tokens": 4, "reasoning_budget_end_tags": ["</think>"]},
    ],
)
def test_a_deferred_field_is_refused_by_its_name(wanted: dict[str, Any]) -> None:
    response = served().post("/completion", json={"prompt": "a", **wanted})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (501, "not_supported_error")
    name = error["message"].removeprefix("not yet implemented: ")
    assert name in wanted and name in DEFERRED
