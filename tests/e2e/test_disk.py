"""Prompts survive a restart, and a kill at any moment, on the real model over HTTP."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import START_SECONDS, Server, free_port, is_ready, running_server

ARGUMENTS = "-c 4096 -np 2 -ctk f32 -ctv f32 --slots --metrics".split()
TEXT = "The keeper of the lighthouse wrote down the weather every morning before breakfast. "
N_SAVED = 4
N_KILLS = int(os.environ.get("MLXSERVER_TEST_SERVER_KILLS", "4"))


def of_length(server: Server, n: int, first: str = "") -> list[int]:
    tokens: list[int] = server.post("/tokenize", content=first + TEXT * (n // 10))["tokens"]
    assert len(tokens) >= n
    return tokens[:n]


def ask(server: Server, prompt: list[int], n: int = 24, **fields: Any) -> dict[str, Any]:
    return server.post("/completion", prompt=prompt, n_predict=n, temperature=0, return_tokens=True, **fields)


def disk_metrics(server: Server) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("mlxserver:cache_disk_"))
    return {name.removeprefix("mlxserver:cache_disk_"): float(value) for name, value in lines}


def test_a_conversation_goes_on_after_a_restart(smollm2: Path, tmp_path: Path, figure: list[str]) -> None:
    arguments = [*ARGUMENTS, "--cache-disk", str(tmp_path / "disk"), "--cache-disk-prefetch", "wait"]
    question = [198, 28, 732, 13]
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        first = of_length(server, 1500)
        begin = time.perf_counter()
        answer = ask(server, first)
        cold_seconds = time.perf_counter() - begin
        second = [*first, *answer["tokens"], *question]
        n_kept = len(first) + len(answer["tokens"]) - 1
        assert answer["timings"]["mlxserver"] == {"cache_ram_n": 0, "cache_disk_n": 0}
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        begin = time.perf_counter()
        restored = ask(server, second)
        seconds = time.perf_counter() - begin
        timings = restored["timings"]
        assert (timings["cache_n"], timings["prompt_n"]) == (n_kept, len(second) - n_kept)
        assert timings["mlxserver"] == {"cache_ram_n": 0, "cache_disk_n": n_kept}
        again = ask(server, second, n=1)["timings"]
        assert again["mlxserver"] == {"cache_ram_n": len(second) - 1, "cache_disk_n": 0}
        chat = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
        assert set(chat["timings"]["mlxserver"]) == {"cache_ram_n", "cache_disk_n"}
        found = disk_metrics(server)
        assert found["hit_blocks_total"] == found["read_blocks_total"] == -(-n_kept // 32)
        assert found["wasted_blocks_total"] == found["errors_total"] == 0
        assert found['prefetches_total{end="complete"}'] == 1
    with running_server(smollm2, tmp_path / "log", *ARGUMENTS) as server:
        assert ask(server, first)["content"] == answer["content"]
        uninterrupted = ask(server, second)
        assert "mlxserver" not in uninterrupted["timings"]
        assert disk_metrics(server) == {}
    assert restored["content"] == uninterrupted["content"]
    figure.append(f"1,500 tokens and 24 more: {cold_seconds:.2f} s cold, {seconds:.2f} s after a restart")


@contextmanager
def killable(model: Path, log: Path, *arguments: str) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "mlxserver", "-m", str(model), "--port", str(port), *arguments]
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    server, begin = Server(f"http://127.0.0.1:{port}", 0.0), time.monotonic()
    try:
        while not is_ready(server.url):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() - begin < START_SECONDS
            time.sleep(0.05)
        yield server, process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(300 + 60 * N_KILLS)
def test_a_server_that_is_killed_while_it_writes_costs_reuse_at_most(
    smollm2: Path, tmp_path: Path, figure: list[str]
) -> None:
    """Slots are being saved to files meanwhile: a file that is there holds what it is to hold."""
    rng = random.Random(7)
    folder, saved = tmp_path / "disk", tmp_path / "slots"
    saved.mkdir()
    arguments = [*ARGUMENTS, "--cache-disk", str(folder), "--cache-disk-prefetch", "wait"]
    arguments += ["--slot-save-path", str(saved)]
    prompts: list[list[int]] = []
    longer: list[list[int]] = []
    """Prompts that slots are saved with, what they gave, and a token more."""
    wanted: list[str] = []
    n_restored = n_files = n_leftovers = 0
    for _ in range(N_KILLS):
        with killable(smollm2, tmp_path / "log", *arguments) as (server, process):
            if not prompts:
                prompts = [of_length(server, 80, f"Day {i}. ") for i in range(4)]
                wanted = [ask(server, each, n=4, cache_prompt=False)["content"] for each in prompts]
                for i in range(N_SAVED):
                    begun = of_length(server, 80, f"Night {i}. ")
                    answer = ask(server, begun, n=4, cache_prompt=False)
                    longer.append([*begun, *answer["tokens"], 28])
                wanted_of_longer = [ask(server, each, n=4, cache_prompt=False)["content"] for each in longer]
            assert not [path for path in saved.iterdir() if path.name.startswith(".")]
            assert not [*folder.rglob("*.tmp")]
            for path in saved.iterdir():
                which = int(path.name)
                restored = server.post("/slots/1?action=restore", filename=path.name)
                assert restored["n_restored"] == len(longer[which]) - 2
                answer = ask(server, longer[which], n=4, id_slot=1)
                assert answer["content"] == wanted_of_longer[which]
                assert answer["timings"]["cache_n"] == restored["n_restored"]
                assert answer["timings"]["mlxserver"]["cache_disk_n"] == 0
                n_files += 1
            for prompt, want in zip(prompts, wanted, strict=True):
                answer = ask(server, prompt, n=4)
                assert answer["content"] == want
                n_restored += answer["timings"]["mlxserver"]["cache_disk_n"]

            def write_more(server: Server = server) -> None:
                with suppress(httpx.TransportError):
                    for i in range(100):
                        ask(server, of_length(server, 80, f"Note {rng.random()} {i}. "), n=1, id_slot=1)

            has_begun = threading.Event()
            first = rng.randrange(N_SAVED)

            def save(server: Server = server, begun: threading.Event = has_begun, first: int = first) -> None:
                with suppress(httpx.TransportError):
                    for i in range(first, first + 100):
                        ask(server, longer[i % N_SAVED][:-5], n=4, id_slot=0)
                        for _ in range(10):
                            server.post("/slots/0?action=save", filename=str(i % N_SAVED))
                            begun.set()

            threads = [threading.Thread(target=work) for work in (write_more, save)]
            for thread in threads:
                thread.start()
            assert has_begun.wait(120)
            time.sleep(rng.uniform(0.0, 0.6))
            os.kill(process.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
            n_leftovers += sum(path.name.startswith(".") for path in saved.iterdir())
    assert n_restored > 0 and n_files > 0
    figure.append(f"{N_KILLS} kills: {n_files} slot files restored, {n_leftovers} half-written ones removed")


def test_a_folder_in_use_and_memory_without_a_trie_are_refused(smollm2: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "disk")

    def refusal(*arguments: str) -> str:
        command = [sys.executable, "-m", "mlxserver", "-m", str(smollm2), "--cache-disk", folder, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
        assert result.returncode == 1
        lines = result.stderr.splitlines()
        assert len(lines) == 1
        return lines[0]

    assert "needs --cache-ram" in refusal("--cache-ram", "0")
    with running_server(smollm2, tmp_path / "log", *ARGUMENTS, "--cache-disk", folder):
        assert "in use by another server" in refusal()


@pytest.mark.parametrize("policy", ["best-effort", "timeout", "wait"])
def test_requests_at_once_after_a_restart(policy: str, smollm2: Path, tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--cache-disk", str(tmp_path / "disk"), "--cache-ram", "30"]
    with running_server(smollm2, tmp_path / "log", *arguments) as server:
        prompts = [of_length(server, 200 + 20 * i, f"Day {i}. ") for i in range(8)]
        wanted = [ask(server, each, n=4)["content"] for each in prompts]
    with running_server(smollm2, tmp_path / "log", *arguments, "--cache-disk-prefetch", policy) as server:
        answers: dict[int, dict[str, Any]] = {}

        def send(i: int) -> None:
            answers[i] = ask(server, prompts[i], n=4)

        threads = [threading.Thread(target=send, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answers[i]["content"] for i in range(len(prompts))] == wanted
        found = disk_metrics(server)
        assert found["read_blocks_total"] == found["hit_blocks_total"] + found["wasted_blocks_total"]
