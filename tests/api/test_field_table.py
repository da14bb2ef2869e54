"""The manifest of request fields and the code that reads them agree."""

from __future__ import annotations

import json
from typing import Any

from mlxserver.api.completion_schema import FIELDS
from mlxserver.options.table import compat_text

ROWS: list[dict[str, Any]] = json.loads(compat_text("llama-server/b10621/fields.json"))
COMPLETION = [row for row in ROWS if row["api"] == "completion"]


def test_every_field_that_is_read_has_a_row() -> None:
    rows = {tuple(row["names"]) for row in COMPLETION}
    assert {field.names for field in FIELDS} <= rows


def test_what_is_not_honoured_says_why() -> None:
    assert not [row["names"] for row in ROWS if row["state"] != "honoured" and not row.get("reason")]
