"""A server's process with little memory: what does not fit gets a 500 that says why, and it lives on."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import Server, running_server
from tests.models import tiny, tiny_folder

N_SLOTS, N_PROMPT, N_PREDICT = 8, 1000, 8
LIMIT = 5


def prompt_of(i: int) -> list[int]:
    return [(i * 31 + j * 7 + j * j * (i + 1)) % 250 for j in range(N_PROMPT)]


def ask(server: Server, i: int, **fields: Any) -> httpx.Response:
    body = {"prompt": prompt_of(i), "n_predict": N_PREDICT, "temperature": 0, "return_tokens": True, **fields}
    return httpx.post(f"{server.url}/completion", json=body, timeout=120)


def test_requests_that_do_not_fit_are_refused_and_the_server_lives_on(tmp_path: Path) -> None:
    model = tiny_folder.write(
        tmp_path / "model", tiny.llama(num_hidden_layers=8), max_position_embeddings=2048
    )
    shape = ["-np", str(N_SLOTS), "-c", str(N_SLOTS * 2048), "-ctk", "f32", "-ctv", "f32", "--no-kv-unified"]
    with running_server(model, tmp_path / "cold", *shape, "--cache-ram", "0") as server:
        cold = [ask(server, i).json()["tokens"] for i in range(N_SLOTS)]
    limit = ["--memory-limit", str(LIMIT), "--cache-ram", "1", "--metrics"]
    with running_server(model, tmp_path / "log", *shape, *limit) as server:
        with ThreadPoolExecutor(N_SLOTS) as pool:
            answers = list(pool.map(lambda i: ask(server, i, stream=i == 5), range(N_SLOTS)))
        good = {i: answer for i, answer in enumerate(answers) if answer.status_code == 200 and i != 5}
        refused = [answer.json()["error"] for answer in answers if answer.status_code != 200]
        assert good and refused
        assert {i: answer.json()["tokens"] for i, answer in good.items()} == {i: cold[i] for i in good}
        for error in refused:
            assert (error["code"], error["type"]) == (500, "server_error")
            assert error["message"].startswith("out of memory: ")
            assert error["message"].endswith(f" of {LIMIT}.0 MiB are free")
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        for i in range(N_SLOTS):
            assert ask(server, i).json()["tokens"] == cold[i]
        peak = next(
            float(line.rsplit(" ", 1)[1])
            for line in httpx.get(f"{server.url}/metrics").text.splitlines()
            if line.startswith("mlxserver:memory_peak_bytes ")
        )
        assert peak <= LIMIT * 2**20


def test_a_model_that_does_not_fit_ends_the_process_before_it_is_loaded(tmp_path: Path) -> None:
    model = tiny_folder.write(tmp_path / "model", tiny.llama(hidden_size=256, intermediate_size=512))
    command = [sys.executable, "-m", "mlxserver", "-m", str(model), "--port", "0", "--memory-limit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() + done.stdout.splitlines() if "memory-limit" in line]
    assert len(lines) == 1
    assert "the weights take 5 MiB, --memory-limit is 1 MiB" in lines[0]
    assert "Traceback" not in done.stderr
