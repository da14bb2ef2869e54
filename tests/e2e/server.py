"""A server process and the few questions that the tests ask it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 120


@dataclass(frozen=True)
class Server:
    url: str
    startup_seconds: float
    """From the start of the process to the first 200 of /health."""

    def post(self, path: str, **fields: Any) -> dict[str, Any]:
        answer = httpx.post(self.url + path, json=fields, timeout=120)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def slots(self) -> list[dict[str, Any]]:
        slots: list[dict[str, Any]] = httpx.get(f"{self.url}/slots", timeout=30).json()
        return slots

    def busy(self) -> list[dict[str, Any]]:
        return [slot for slot in self.slots() if slot["is_processing"]]

    def metric(self, name: str) -> float:
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith(f"llamacpp:{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"/metrics has no llamacpp:{name}")


def wait_until(what: str, condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until the condition held."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running_server(model: Path, log: Path, *arguments: str) -> Iterator[Server]:
    """MLXSERVER_TEST_SERVER may name another command, such as a llama-server, to try the tests on."""
    own = shlex.join([sys.executable, "-m", "mlxserver"])
    command = shlex.split(os.environ.get("MLXSERVER_TEST_SERVER", own))
    port = free_port()
    command += ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), *arguments]
    url = f"http://127.0.0.1:{port}"
    start = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        while not is_ready(url):
            tail = log.read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"the server ended with {process.returncode}:\n{tail}"
            assert time.monotonic() - start < START_SECONDS, f"the server did not get ready:\n{tail}"
            time.sleep(0.05)
        yield Server(url, time.monotonic() - start)
        assert process.poll() is None, "the server died during the tests"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
