from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxserver.options import inifile


@pytest.fixture(autouse=True, scope="session")
def no_system_config() -> Iterator[None]:
    """Keeps a config file of this machine out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inifile, "SYSTEM_FILE", Path("/nowhere/config.ini"))
        yield
