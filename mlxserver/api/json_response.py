"""A JSON answer in llama-server's form."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from mlxserver.api.json_body import dump_json


def json_response(value: Any, status: int = 200) -> Response:
    return Response(dump_json(value), status, media_type="application/json; charset=utf-8")
