from __future__ import annotations

from tests.e2e.server import Server


def test_startup_time_is_told(server: Server, figure: list[str]) -> None:
    """Told, not judged: a busy machine is slow. The aim is under 6 s for SmolLM2."""
    figure.append(f"start to /health 200: {server.startup_seconds:.1f} s")
    assert server.startup_seconds > 0
