"""A server process for the time of a measurement, and one-token questions to it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 300


@dataclass(frozen=True)
class Server:
    url: str
    pid: int
    spawned: float
    """``time.perf_counter()`` when the process was started."""

    def ask(self, prompt: Sequence[int], **fields: Any) -> dict[str, Any]:
        """The answer of one token to a prompt of token ids. Raises where the server refuses."""
        body = {"prompt": list(prompt), "n_predict": 1, "temperature": 0, "id_slot": 0, **fields}
        return self.post("/completion", body)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = httpx.post(self.url + path, json=body, timeout=900)
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[Server]:
    """Starts ``command`` with a ``--port`` and waits until it says that it is well."""
    port = free_port()
    spawned = time.perf_counter()
    with log.open("a") as out:
        arguments = [*command, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT)
    server = Server(f"http://127.0.0.1:{port}", process.pid, spawned)
    try:
        while not is_ready(server.url):
            if process.poll() is not None or time.perf_counter() - spawned > START_SECONDS:
                raise RuntimeError(f"{command[0]} did not start; see {log}")
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
