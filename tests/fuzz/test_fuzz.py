"""A few hundred inputs for every target; ``python -m tests.fuzz.run`` takes as many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS

N_INPUTS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_goes_wrong(name: str, folder: Path) -> None:
    fuzz(name, N_INPUTS, 1, folder)


def test_what_goes_wrong_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(rng: object, folder: Path) -> None:
        raise KeyError("a bug")

    monkeypatch.setitem(TARGETS, "gguf", wrong)
    with pytest.raises(KeyError) as found:
        fuzz("gguf", 5, 7, folder, first=3)
    assert found.value.__notes__ == ["input 3 of gguf, seed 7"]
