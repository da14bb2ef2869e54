"""What Vertex AI tells a container of its routes and port, in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MODE, HEALTH, PREDICT, PORT = "AIP_MODE", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE", "AIP_HTTP_PORT"


@dataclass(frozen=True, slots=True)
class VertexAi:
    """``health`` is empty where no further health route is asked for."""

    health: str
    predict: str
    port: int


def read_vertex_ai(environ: Mapping[str, str]) -> VertexAi | None:
    """None unless Vertex AI runs this server for predictions. Raises ``ValueError`` for a bad port."""
    if environ.get(MODE) != "PREDICTION":
        return None
    port = environ.get(PORT) or "8080"
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{PORT} is no port: {port}")
    health = environ.get(HEALTH) or ""
    return VertexAi(_path(health) if health else "", _path(environ.get(PREDICT) or "/predict"), int(port))


def _path(text: str) -> str:
    return text if text.startswith("/") else f"/{text}"
