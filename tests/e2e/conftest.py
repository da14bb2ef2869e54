"""One server for all tests of this folder, each of which needs the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, running_server

FIGURES: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.real_model)


@pytest.fixture(scope="session")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four slots of 2048 tokens each."""
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = "-c 8192 -np 4 -ctk f32 -ctv f32 --slots --metrics --alias smollm2".split()
    with running_server(smollm2, log, *arguments) as running:
        yield running


@pytest.fixture
def figure() -> Iterator[list[str]]:
    """Measured figures that are told, not judged."""
    figures: list[str] = []
    yield figures
    FIGURES.extend(figures)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in FIGURES:
        terminalreporter.write_line(f"measured: {line}")
