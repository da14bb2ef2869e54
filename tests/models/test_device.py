"""What is decided by the device."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlxserver.models.device import wire_memory


@pytest.mark.parametrize(("is_metal", "limits"), [(True, [12345]), (False, [])])
def test_memory_is_wired_on_metal_only(
    is_metal: bool, limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(mx.metal, "is_available", lambda: is_metal)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 12345})
    monkeypatch.setattr(mx, "set_wired_limit", found.append)
    wire_memory()
    assert found == limits
