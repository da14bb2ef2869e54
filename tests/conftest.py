"""Fixtures that every layer's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("person", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "person")


def _model_from_env(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        pytest.skip(f"{name} is not set")
    path = Path(value)
    assert path.exists(), f"{name} names no file: {path}"
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct (`make model`)."""
    return _model_from_env("MLXSERVER_TEST_MODEL")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, for the tests of encoders."""
    return _model_from_env("MLXSERVER_TEST_MINILM")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """A GGUF file of gemma3-270m, for the tests of large vocabularies and sliding windows."""
    return _model_from_env("MLXSERVER_TEST_GEMMA3")
