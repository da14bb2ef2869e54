"""The process around the application: listening, loading, failing, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mlxserver import serving, watchdog
from mlxserver.api.errors import FAILED
from mlxserver.engine import task as engine_task
from mlxserver.engine.client import EngineClient
from mlxserver.engine.mailbox import Submit
from mlxserver.engine.pulse import Pulse
from mlxserver.engine_start import StartedEngine
from mlxserver.models.errors import ModelError
from mlxserver.options import parse_command_line
from tests.api.served import served_state
from tests.engine.bench import CONFIG


def options(*argv: str) -> Any:
    return parse_command_line(["-m", "fake.gguf", "--port", "0", *argv], {})


def started(closed: list[bool] | None = None) -> Any:
    """What starting the engine gives, without one: every task gets a first token and then hangs."""
    loop = asyncio.get_running_loop()
    client = EngineClient(loop)

    def post(message: Any) -> None:
        if isinstance(message, Submit):
            task = message.task
            client.receive([engine_task.Started(task.id, 0, len(task.tokens), 0, 1.0)])
            client.receive([engine_task.Token(task.id, ord("a"), 1.0)])

    engine: Any = SimpleNamespace(
        close=lambda timeout: None if closed is None else closed.append(True), post=post, pulse=Pulse()
    )
    client.attach(engine, CONFIG)
    return StartedEngine(served_state().model, client, engine, [], loop.create_future())


class Serving:
    """A server on a free port, or on a Unix socket, whose model loads when told to."""

    def __init__(self, *argv: str) -> None:
        self.state = serving.ServerState(options(*argv))
        app = serving.make_app(self.state)
        self.server = serving.Server(serving.uvicorn_config(app, self.state.options), self.state)
        self.listener = serving.bind(self.state.options.host, 0, reuse_port=False)
        self.address = serving.address_of(self.listener, self.state.options)
        self.closed: list[bool] = []
        self.loaded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def run(self, monkeypatch: pytest.MonkeyPatch, use: Callable[[], Awaitable[None]]) -> int:
        async def start_engine(_: Any) -> Any:
            return await self.loaded

        monkeypatch.setattr(serving, "start_engine", start_engine)
        running = asyncio.create_task(serving._run(self.server, self.listener, self.state))
        while not self.server.started:
            await asyncio.sleep(0.01)
        await use()
        return await asyncio.wait_for(running, 10)

    async def load(self, client: httpx.AsyncClient) -> Any:
        """What is loaded, once it is served."""
        loaded = started(self.closed)
        self.loaded.set_result(loaded)
        while (await client.get("/health")).status_code == 503:
            await asyncio.sleep(0.01)
        return loaded

    def stop(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)


def test_it_answers_before_during_and_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Serving()

        async def use() -> None:
            async with httpx.AsyncClient(base_url=server.address) as client:
                assert (await client.get("/health")).status_code == 503
                await server.load(client)
                response = await client.get("/health")
                assert response.headers.get_list("server") == ["llama.cpp"]
            server.stop()

        assert await server.run(monkeypatch, use) == 0
        assert server.closed == [True]

    asyncio.run(run())


def test_answers_that_outlast_the_stop_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "DRAIN_SECONDS", 0.5)
    monkeypatch.setattr(serving, "LAST_WORDS_SECONDS", 0.2)

    async def run() -> None:
        server = Serving()

        async def use() -> None:
            async with httpx.AsyncClient(base_url=server.address, timeout=20) as client:
                await server.load(client)
                plain = asyncio.create_task(client.post("/completion", json={"prompt": "x"}))
                stream = asyncio.create_task(client.post("/completion", json={"prompt": "x", "stream": True}))
                reader, writer = await asyncio.open_connection(*server.listener.getsockname())
                writer.write(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
                await asyncio.sleep(0.3)
                server.stop()
                answer = await plain
                assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable_error")
                last = (await stream).text.strip().split("\n\n")[-1]
                assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
                writer.close()

        assert await server.run(monkeypatch, use) == 0

    asyncio.run(run())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_an_engine_that_cannot_go_on_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        server = Serving()

        async def use() -> None:
            async with httpx.AsyncClient(base_url=server.address, timeout=20) as client:
                loaded = await server.load(client)
                plain = asyncio.create_task(client.post("/completion", json={"prompt": "x"}))
                await asyncio.sleep(0.2)
                loaded.failed.set_result(RuntimeError("no device"))
                assert (await plain).status_code == 500
                health = await asyncio.gather(client.get("/health"), return_exceptions=True)
                assert isinstance(health[0], httpx.TransportError) or health[0].status_code == 503

        assert await server.run(monkeypatch, use) == 1

    asyncio.run(run())
    assert "no device" in caplog.text


def test_a_step_that_never_returns_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exits: list[int] = []
    monkeypatch.setattr(watchdog, "os", SimpleNamespace(_exit=exits.append))

    async def run() -> None:
        server = Serving("--watchdog", "1")

        async def use() -> None:
            async with httpx.AsyncClient(base_url=server.address, timeout=20) as client:
                loaded = await server.load(client)
                asks = [{"prompt": "x"}, {"prompt": "x", "stream": True}]
                answers = [asyncio.create_task(client.post("/completion", json=each)) for each in asks]
                await asyncio.sleep(0.2)
                assert (await client.get("/health")).status_code == 200
                loaded.engine.pulse.enter("launch")
                plain, stream = [await each for each in answers]
                assert (plain.status_code, plain.json()["error"]["type"]) == (500, "server_error")
                last = json.loads(stream.text.strip().split("\n\n")[-1].removeprefix("data: "))
                assert last["error"] == {
                    "code": 500,
                    "message": "The engine has failed",
                    "type": "server_error",
                }
                health = await client.get("/health")
                assert (health.status_code, health.json()) == (503, FAILED)
                late = await client.post("/completion", json={"prompt": "y"})
                assert late.status_code == 503

        assert await server.run(monkeypatch, use) == 1
        assert server.closed == [], "a thread that is stuck is not waited for"

    asyncio.run(run())
    assert "it has been at 'launch' for" in caplog.text
    assert exits == []


def test_without_a_watchdog_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Serving("--watchdog", "0")

        async def use() -> None:
            async with httpx.AsyncClient(base_url=server.address) as client:
                await server.load(client)
            names = [thread.name for thread in threading.enumerate()]
            assert watchdog.WATCHDOG_THREAD not in names
            server.stop()

        assert await server.run(monkeypatch, use) == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [
        (ModelError("no such model"), False),
        (ImportError("libmlx.so: cannot open shared object file"), False),
        (RuntimeError("unforeseen"), True),
    ],
)
def test_a_model_that_does_not_load_ends_the_process(
    error: Exception, is_traced: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        server = Serving()

        async def use() -> None:
            server.loaded.set_exception(error)

        assert await server.run(monkeypatch, use) == 1

    asyncio.run(run())
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == is_traced
    assert ("pip install" in caplog.text) == isinstance(error, ImportError)
    assert "exiting due to model loading error" in caplog.text


def test_it_stops_while_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Serving()

        async def use() -> None:
            server.stop()

        assert await server.run(monkeypatch, use) == 0

    asyncio.run(run())


def test_a_unix_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"

    async def run() -> None:
        server = Serving("--host", str(path))
        assert server.address == f"unix://{path}"

        async def use() -> None:
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
                assert (await client.get("/health")).status_code == 503
            server.stop()

        assert await server.run(monkeypatch, use) == 0

    asyncio.run(run())
    assert not path.exists()


def test_a_port_in_use_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert serving.serve(options("--port", str(other.getsockname()[1]))) == 1
    assert "exiting due to HTTP server error" in caplog.text


@pytest.mark.parametrize(
    "argv",
    [
        ("--ssl-key-file", "/absent.key", "--ssl-cert-file", "/absent.crt"),
        ("--path", "/absent-folder"),
        ("--host", "no-such-host.invalid"),
        ("--cors-origins", "http://a\r\nX-Evil: 1"),
        ("--cors-methods", "GET\n"),
        ("--api-prefix", "/a\r\nX-Evil: 1"),
        ("--api-prefix", "a"),
    ],
)
def test_what_cannot_be_served_ends_the_process(
    argv: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert serving.serve(options(*argv)) == 1
    assert "exiting due to HTTP server error" in caplog.text


def test_the_process_ends_without_waiting_for_threads_or_destructors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(server: Any, listener: socket.socket, state: Any) -> int:
        listener.close()
        return 7

    codes: list[int] = []
    monkeypatch.setattr(serving.os, "_exit", codes.append)
    monkeypatch.setattr(serving.logging, "shutdown", lambda: None)
    monkeypatch.setattr(serving.signal, "signal", lambda *_: None)
    monkeypatch.setattr(serving, "_run", run)
    assert serving.serve(options()) == 7
    assert codes == [7]


def test_the_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(serving.os, "_exit", codes.append)
    server = serving.Server(serving.uvicorn_config(None, options()), serving.ServerState(options()))
    server.handle_exit(signal.SIGINT, None)
    assert (server.should_exit, codes) == (True, [])
    server.handle_exit(signal.SIGINT, None)
    assert codes == [1]


def test_addresses() -> None:
    with serving.bind("127.0.0.1", 0, reuse_port=True) as listener:
        port = listener.getsockname()[1]
        assert serving.address_of(listener, options()) == f"http://127.0.0.1:{port}"
        secure = options("--ssl-key-file", "k", "--ssl-cert-file", "c")
        assert serving.address_of(listener, secure) == f"https://127.0.0.1:{port}"


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "key"
    key.write_text("no key")
    for path in ("/absent.key", str(key)):
        caplog.clear()
        assert serving.serve(options("--ssl-key-file", path, "--ssl-cert-file", path)) == 1
        assert f"cannot use the TLS key and certificate ({path}, {path}): " in caplog.text
        assert "bind" not in caplog.text


def test_folders_without_rights_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = options("--slot-save-path", str(tmp_path), "--lora-dir", str(tmp_path))
    serving.warn_of_folders(made)
    assert not caplog.text
    monkeypatch.setattr(serving.os, "access", lambda path, mode: False)
    serving.warn_of_folders(made)
    assert "is read-only, slots cannot be saved" in caplog.text
    assert "cannot be read, no adapter can be loaded" in caplog.text


def test_open_origins_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    serving.warn_of_open_origins(options("--api-key", "k"))
    serving.warn_of_open_origins(options("--cors-origins", "localhost"))
    assert not caplog.text
    serving.warn_of_open_origins(options())
    assert "no API key is set" in caplog.text
