"""What a machine can spare, read from made-up files of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.models import memory_limit
from mlxserver.models.memory_limit import LEAST_MARGIN, MIB, MemoryLimit, spare_memory

MEMINFO = "MemTotal:  16000000 kB\nMemAvailable:   8000000 kB\nHugePages_Total:  0\nSwapFree:  1000000 kB\n"
AVAILABLE, SWAP = 8000000 * 1024, 1000000 * 1024


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text(MEMINFO)
    return folder


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_what_is_available_without_a_group(proc: Path, cgroup: Path) -> None:
    assert spare_memory(proc, cgroup, with_swap=False) == AVAILABLE
    assert spare_memory(proc, cgroup, with_swap=True) == AVAILABLE + SWAP
    assert spare_memory(cgroup, cgroup, with_swap=False) is None


def test_a_container_s_group(proc: Path, cgroup: Path) -> None:
    write(cgroup, memory__max="max\n", memory__current="5\n")
    assert spare_memory(proc, cgroup, with_swap=False) == AVAILABLE
    stat = f"anon 7\ninactive_file {200 * MIB}\n"
    write(cgroup, memory__max=f"{1024 * MIB}\n", memory__current=f"{500 * MIB}\n", memory__stat=stat)
    assert spare_memory(proc, cgroup, with_swap=False) == 724 * MIB
    assert spare_memory(proc, cgroup, with_swap=True) == 724 * MIB


def test_the_groups_above_count_too(proc: Path, cgroup: Path) -> None:
    write(proc / "self", cgroup="0::/system.slice/server.service\n")
    write(cgroup / "system.slice" / "server.service", memory__max="max\n", memory__current="1\n")
    write(cgroup / "system.slice", memory__max=f"{100 * MIB}\n", memory__current=f"{40 * MIB}\n")
    assert spare_memory(proc, cgroup, with_swap=False) == 60 * MIB


def test_version_1(proc: Path, cgroup: Path) -> None:
    write(proc / "self", cgroup="5:cpu:/x\n4:memory:/box\n")
    box = cgroup / "memory" / "box"
    write(box, memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="5\n")
    assert spare_memory(proc, cgroup, with_swap=False) == AVAILABLE
    stat = f"inactive_file 1\ntotal_inactive_file {10 * MIB}\n"
    used = f"{90 * MIB}\n"
    write(box, memory__limit_in_bytes=f"{200 * MIB}\n", memory__usage_in_bytes=used, memory__stat=stat)
    assert spare_memory(proc, cgroup, with_swap=False) == 120 * MIB


def test_the_option_and_the_default(proc: Path, cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "PROC", proc)
    monkeypatch.setattr(memory_limit, "CGROUP", cgroup)
    monkeypatch.setattr(memory_limit.mx.metal, "is_available", lambda: False)
    assert memory_limit.memory_limit(0) == MemoryLimit(None, is_given=True)
    assert memory_limit.memory_limit(7) == MemoryLimit(7 * MIB, is_given=True)
    assert memory_limit.memory_limit(-1) == MemoryLimit(AVAILABLE - AVAILABLE // 16)
    assert memory_limit.most_memory() == AVAILABLE + SWAP
    (proc / "meminfo").write_text("MemAvailable:   1048576 kB\n")
    assert memory_limit.memory_limit(-1) == MemoryLimit(1024 * MIB - LEAST_MARGIN)
    monkeypatch.setattr(memory_limit.mx.metal, "is_available", lambda: True)
    working_set = {"max_recommended_working_set_size": 12 * 1024 * MIB}
    monkeypatch.setattr(memory_limit.mx, "device_info", lambda: working_set)
    assert memory_limit.memory_limit(-1) == MemoryLimit((12 * 1024 - 768) * MIB)
    assert memory_limit.most_memory() is None
