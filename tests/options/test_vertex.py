"""Vertex AI's variables."""

from __future__ import annotations

import pytest

from mlxserver.options.vertex import VertexAi, read_vertex_ai


def test_only_for_predictions() -> None:
    assert read_vertex_ai({"AIP_HTTP_PORT": "9"}) is None
    assert read_vertex_ai({"AIP_MODE": "TRAINING"}) is None
    assert read_vertex_ai({"AIP_MODE": "PREDICTION"}) == VertexAi("", "/predict", 8080)


def test_routes_begin_with_a_slash() -> None:
    given = {"AIP_HEALTH_ROUTE": "ping", "AIP_PREDICT_ROUTE": "/a/b", "AIP_HTTP_PORT": "9"}
    assert read_vertex_ai({"AIP_MODE": "PREDICTION", **given}) == VertexAi("/ping", "/a/b", 9)


@pytest.mark.parametrize("port", ["x", "-1", "65536", "8080a"])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(ValueError, match="AIP_HTTP_PORT is no port"):
        read_vertex_ai({"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": port})
