"""The servers that are compared, on the same converted model."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

STREAMS_MAX = 8
CONTEXT = 1024


def mlxserver(model: Path, port: int) -> list[str]:
    arguments = f"-c {CONTEXT * STREAMS_MAX} -np {STREAMS_MAX} -ctk f32 -ctv f32 --port {port}"
    return [sys.executable, "-m", "mlxserver", "-m", str(model), *shlex.split(arguments)]


def mlx_lm_server(model: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port)]


SERVERS = {"mlxserver": mlxserver, "mlx_lm.server": mlx_lm_server}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(name: str, model: Path, logs: Path, extra: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """The server's address, and the seconds until it said that it is well. ``extra``: more arguments."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    start = time.perf_counter()
    with (logs / f"{name}.log").open("a") as log:
        command = [*SERVERS[name](model, port), *extra]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        while not is_ready(url):
            if process.poll() is not None or time.perf_counter() - start > 180:
                raise RuntimeError(f"{name} did not start; see {logs / f'{name}.log'}")
            time.sleep(0.05)
        yield url, time.perf_counter() - start
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
