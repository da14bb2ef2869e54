"""What counts as stuck, and that a process whose engine is stuck or lost ends with code 1."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mlxserver import watchdog
from mlxserver.api.errors import FAILED
from mlxserver.engine.pulse import Pulse
from mlxserver.options import parse_command_line
from mlxserver.watchdog import EngineStuck, Watch, Watchdog
from tests.e2e.server import free_port, wait_until
from tests.models import tiny, tiny_folder


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def looks(watch: Watch, clock: Clock, seconds: float) -> EngineStuck | None:
    """The outcome of looking for so long, or until it is stuck."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += watch.seconds_per_look
        if stuck := watch.look():
            return stuck
    return None


def test_one_phase_for_too_long_is_stuck() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    watch = Watch(pulse, 20, clock)
    pulse.enter("collect")
    assert looks(watch, clock, 19) is None
    stuck = looks(watch, clock, 3)
    assert str(stuck) == "it has been at 'collect' for 21 s (--watchdog 20)"


def test_an_engine_that_moves_or_rests_is_not_stuck() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    watch = Watch(pulse, 20, clock)
    assert looks(watch, clock, 100) is None, "it loads the model"
    for _ in range(10):  # the same phase, in one round after the other
        pulse.enter("launch")
        assert looks(watch, clock, 15) is None
    pulse.rest()
    assert looks(watch, clock, 100) is None


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The process was stopped, or the machine slept: the engine could not move either."""
    clock = Clock()
    pulse = Pulse(clock)
    watch = Watch(pulse, 20, clock)
    pulse.enter("launch")
    assert looks(watch, clock, 5) is None
    clock.now += 3600
    assert watch.look() is None
    assert looks(watch, clock, 5) is None
    assert looks(watch, clock, 12) is not None


def test_the_process_is_ended_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, told = threading.Event(), []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=lambda code: code == 1 and ended.set()))
    monkeypatch.setattr(watchdog, "EXIT_SECONDS", 0.1)
    pulse = Pulse()
    pulse.enter("plan")
    dog = Watchdog(Watch(pulse, 0.1), told.append)
    dog.start()
    assert ended.wait(10)
    assert "'plan'" in str(told[0])


def test_the_default_is_generous() -> None:
    assert parse_command_line(["-m", "x.gguf"], {}).watchdog == 600


STUCK = """
import time
from mlxserver.engine.runner import Runner
Runner.launch = lambda self, plan: time.sleep(3600)
"""
LOST = """
from mlxserver.engine.assembly import Assembly
from mlxserver.engine.runner import Runner
def fail(*arguments):
    raise SystemExit("a fault")
Runner.launch = Assembly.rebuild = fail
"""
MAIN = """
import sys
from mlxserver.__main__ import main
sys.exit(main())
"""


@contextmanager
def server_with(code: str, model: Path, log: Path, *argv: str) -> Iterator[tuple[str, Any]]:
    """(its address, the process) of a server in which ``code`` was run first."""
    port = free_port()
    command = [sys.executable, "-c", code, "-m", str(model), "--port", str(port), "-np", "1", *argv]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return health_of(url) == (200, {"status": "ok"})

        wait_until("ready", is_ready, 120)
        yield url, process
    finally:
        process.kill()
        process.wait()


def health_of(url: str) -> tuple[int, Any]:
    try:
        answer = httpx.get(f"{url}/health", timeout=5)
        return answer.status_code, answer.json()
    except httpx.TransportError:
        return 0, None


def ask(url: str, answers: list[httpx.Response], **fields: Any) -> threading.Thread:
    def run() -> None:
        answers.append(httpx.post(f"{url}/completion", json={"prompt": "ab", **fields}, timeout=60))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def error_of(answer: httpx.Response) -> Any:
    """A status of its own, or an event of a stream that had begun."""
    begun = answer.status_code == 200
    assert begun or answer.status_code == 500
    return json.loads(answer.text.removeprefix("data: ") if begun else answer.text)["error"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder.write(tmp_path_factory.mktemp("model"), tiny.llama())


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (STUCK, "the engine cannot go on: it has been at 'launch' for"),
        (LOST, "the engine cannot go on: a fault"),
    ],
    ids=["stuck", "lost"],
)
def test_a_server_whose_engine_cannot_go_on_tells_everybody_and_ends(
    code: str, line: str, model: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with server_with(code + MAIN, model, log, "--watchdog", "2") as (url, process):
        answers: list[httpx.Response] = []
        threads = [ask(url, answers, stream=stream) for stream in (False, True, False, True)]
        seen = set()

        def has_ended() -> bool:
            status, body = health_of(url)
            seen.add((status, json.dumps(body)))
            return process.poll() is not None

        wait_until("the end of the process", has_ended, 60)
        for thread in threads:
            thread.join()
        assert process.returncode == 1
        late = [answer for answer in answers if answer.status_code == 503]  # came when it was known
        assert all(answer.json() == FAILED for answer in late)
        others = [answer for answer in answers if answer not in late]
        assert others
        assert {error_of(each)["type"] for each in others} == {"server_error"}
        assert (503, json.dumps(FAILED)) in seen
        assert line in log.read_text()
