"""The servers that are compared, each as the command line that meets a workload's needs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.running import running


@dataclass(frozen=True)
class Needs:
    """``context``: tokens of one slot. ``cache_reuse``: llama-server's ``--cache-reuse``."""

    slots: int = 8
    context: int = 1024
    cache_reuse: int = 0


@dataclass(frozen=True)
class Weights:
    """The same numbers twice, in 32-bit floats."""

    gguf: Path
    folder: Path

    @property
    def nbytes(self) -> int:
        return (self.folder / "model.safetensors").stat().st_size


Command = Callable[[Weights, Needs], list[str]]


def mlxserver(weights: Weights, needs: Needs) -> list[str]:
    return python("mlxserver", "-m", str(weights.folder), *llama_options(needs))


def mlx_lm_server(weights: Weights, needs: Needs) -> list[str]:
    options = ("--model", str(weights.folder), "--decode-concurrency", str(needs.slots))
    return python("mlx_lm", "server", *options)


def llama_server(binary: Path) -> Command:
    return lambda weights, needs: [str(binary), "-m", str(weights.gguf), *llama_options(needs)]


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def llama_options(needs: Needs) -> list[str]:
    """Threads, flash attention and all else are as the server chooses."""
    options = f"-c {needs.context * needs.slots} -np {needs.slots} -ctk f32 -ctv f32"
    return [*shlex.split(options), *(["--cache-reuse", str(needs.cache_reuse)] if needs.cache_reuse else [])]


SERVERS: dict[str, Command] = {"mlxserver": mlxserver, "mlx_lm.server": mlx_lm_server}


@contextmanager
def serving(name: str, model: Path, logs: Path, extra: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """One of ``SERVERS`` on any model: its address and the time that it was spawned."""
    command = [*SERVERS[name](Weights(model, model), Needs()), *extra]
    with running(command, logs / f"{name}.log") as server:
        yield server.url, server.spawned
