"""A server process for the time of a measurement, and one-token questions to it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.contestants import free_port, is_ready

START_SECONDS = 300


@dataclass(frozen=True)
class Server:
    url: str

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
    """Starts ``command`` with a ``--port`` and waits until it is ready."""
    port = free_port()
    server = Server(f"http://127.0.0.1:{port}")
    with log.open("w") as out:
        arguments = [*command, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT)
    try:
        begin = time.perf_counter()
        while not is_ready(server.url):
            if process.poll() is not None or time.perf_counter() - begin > START_SECONDS:
                raise RuntimeError(f"{command[0]} did not start; see {log}")
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
