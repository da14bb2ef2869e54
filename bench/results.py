"""The JSON file of a comparison: what was played is kept, so that a run may be split and taken up again."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.workload import Figures

PACKAGES = ("mlxserver", "mlx", "mlx-lm", "starlette", "uvicorn")


@dataclass
class Record:
    """One contestant in one round: ``figures``, or the ``error`` that ended it."""

    figures: Figures | None = None
    error: str = ""
    others: float | None = None
    """Cores that other processes kept busy meanwhile."""
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))


@dataclass
class Played:
    """One workload. Records of another commit or size do not compare, so ``basis`` tells these."""

    basis: dict[str, Any]
    rounds: list[dict[str, Record]] = field(default_factory=list)
    """By contestant."""

    def missing(self, number: int, contestants: list[str]) -> list[str]:
        """Those without figures in the round; each round begins with another one."""
        while len(self.rounds) <= number:
            self.rounds.append({})
        first = number % len(contestants)
        done = self.rounds[number]
        order = contestants[first:] + contestants[:first]
        return [name for name in order if name not in done or done[name].error]


class Results:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.about: dict[str, Any] = {}
        self.workloads: dict[str, Played] = {}
        if file.exists():
            self.read(json.loads(file.read_text(encoding="utf-8")))

    def read(self, stored: dict[str, Any]) -> None:
        self.about = stored["about"]
        for name, played in stored["workloads"].items():
            rounds = [{who: Record(**record) for who, record in each.items()} for each in played["rounds"]]
            self.workloads[name] = Played(played["basis"], rounds)

    def of(self, workload: str, basis: dict[str, Any]) -> Played:
        """What is known of a workload on this basis; what is known on another one is dropped."""
        if workload not in self.workloads or self.workloads[workload].basis != basis:
            self.workloads[workload] = Played(basis)
        return self.workloads[workload]

    def save(self) -> None:
        stored = {
            "about": self.about,
            "workloads": {name: asdict(played) for name, played in self.workloads.items()},
        }
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        part.replace(self.file)


def commit() -> str:
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def about_machine() -> dict[str, Any]:
    return {
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if installed(name)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}, {os.cpu_count()} cores",
        "openblas": "openblas" in os.environ.get("LD_PRELOAD", ""),
        "openblas_threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
    }


def installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
