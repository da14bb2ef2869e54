"""What a client can hold of the server by sending slowly, too much, or not reading: real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response

from mlxserver import connection, serving
from mlxserver.api import gates
from mlxserver.api.json_response import json_response
from mlxserver.api.router import Router
from mlxserver.api.routes import Route
from mlxserver.api.state import ServerState
from mlxserver.api.unavailable import Handler
from tests.api.fake_engine import FakeEngine
from tests.api.listening import Listening, listening, post
from tests.api.served import served_state

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def on_a_socket(
    use: Callable[[Listening], Awaitable[None]], *argv: str, state: ServerState | None = None
) -> None:
    async def run() -> None:
        async with listening(state or served_state(*argv)) as server:
            try:
                await asyncio.wait_for(use(server), 20)
            finally:
                await server.hang_up()

    asyncio.run(run())


async def trickle(writer: asyncio.StreamWriter, data: bytes, pause: float) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(pause)


class TestHeads:
    def test_one_that_trickles_in_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            start = time.monotonic()
            sending = asyncio.create_task(trickle(writer, HEALTH * 20, 0.02))
            status = await reader.readline()
            assert b" 408 " in status
            assert 0.2 < time.monotonic() - start < 2
            assert (await reader.read()).endswith(b'"type":"invalid_request_error","code":408}}')
            sending.cancel()

        on_a_socket(use)

    def test_a_connection_that_says_nothing_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)

        async def use(server: Listening) -> None:
            reader, _ = await server.connect()
            assert b" 408 " in await reader.read()
            await until(lambda: server.n_connections == 0)

        on_a_socket(use)

    def test_a_second_request_that_trickles_in_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            writer.write(HEALTH.replace(b"Connection: close\r\n", b""))
            await reader.readuntil(b'{"status":"ok"}')
            sending = asyncio.create_task(trickle(writer, HEALTH * 20, 0.02))
            assert b" 408 " in await reader.read()
            sending.cancel()

        on_a_socket(use)

    def test_a_long_answer_is_not_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)

        async def slow(request: Request, state: ServerState) -> Response:
            await asyncio.sleep(0.5)
            return json_response("late")

        serve_health_by(slow, monkeypatch)

        async def use(server: Listening) -> None:
            assert (await server.ask(HEALTH)).body == b'"late"'

        on_a_socket(use)

    def test_too_long_headers(self) -> None:
        async def use(server: Listening) -> None:
            answer = await server.ask(b"GET / HTTP/1.1\r\nX: " + b"a" * (connection.MAX_HEAD + 300_000))
            assert (answer.status, answer.error["code"]) == (431, 431)
            assert answer.error["type"] == "invalid_request_error"

        on_a_socket(use)

    def test_what_is_no_http(self) -> None:
        async def use(server: Listening) -> None:
            answer = await server.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")

        on_a_socket(use)


class TestBodies:
    def test_one_that_trickles_in_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "BODY_SECONDS", 0.3)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            writer.write(post("/tokenize", b"")[:-4].replace(b"Length: 0", b"Length: 1000") + b"\r\n\r\n")
            sending = asyncio.create_task(trickle(writer, b" " * 1000, 0.02))
            assert b" 408 " in await reader.readline()
            sending.cancel()

        on_a_socket(use)

    def test_the_rest_of_one_that_was_refused_is_not_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            writer.write(post("/tokenize", b"x").replace(b"Length: 1", b"Length: 1000"))
            sending = asyncio.create_task(trickle(writer, b" " * 999, 0.02))
            assert b" 401 " in await reader.readline()
            with pytest.raises(ConnectionError):
                while await reader.read(1000):
                    pass
                raise ConnectionError
            assert not sending.done()
            sending.cancel()

        on_a_socket(use, "--api-key", "k")

    def test_all_together_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gates, "MAX_HELD", 1500)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            writer.write(post("/tokenize", b"x" * 999).replace(b"Length: 999", b"Length: 1000"))
            await asyncio.sleep(0.1)
            body = {"content": "a" * 980}
            answer = await server.ask(post("/tokenize", body, "Connection: close"))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.error["type"] == "unavailable_error"
            writer.write(b"x")
            assert b" 500 " in await reader.readline()
            assert (await server.ask(post("/tokenize", body, "Connection: close"))).status == 200

        on_a_socket(use)


def test_more_connections_than_allowed_are_turned_away() -> None:
    async def use(server: Listening) -> None:
        held = [await server.connect() for _ in range(2)]
        await until(lambda: server.n_connections == 2)
        answer = await server.ask(HEALTH)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error == {"message": "Too many connections", "type": "unavailable_error", "code": 503}
        held[0][1].close()
        await until(lambda: server.n_connections == 1)
        assert (await server.ask(HEALTH)).status == 200

    on_a_socket(use, "--max-connections", "2")


class TestReaders:
    """``-to`` bounds how long a full buffer may stay unread."""

    def test_a_stream_that_nobody_reads_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = FakeEngine("x" * 400_000)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect(limit=1)
            writer.write(post("/completion", {"prompt": "a", "stream": True, "n_probs": 5}))
            await until(lambda: bool(engine.runs) and engine.runs[0].cancelled)
            await until(lambda: server.n_connections == 0)

        on_a_socket(use, state=served_state("-to", "1", engine=engine))

    def test_an_answer_that_nobody_reads_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        serve_health_by(large, monkeypatch)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect(limit=1)
            writer.write(HEALTH.replace(b"Connection: close\r\n", b""))
            await until(lambda: server.n_connections == 0)

        on_a_socket(use, "-to", "1")

    def test_one_that_is_read_slowly_comes_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        serve_health_by(large, monkeypatch)

        async def use(server: Listening) -> None:
            reader, writer = await server.connect()
            writer.write(HEALTH)
            n_read = 0
            while data := await reader.read(1_000_000):
                n_read += len(data)
                await asyncio.sleep(0.02)
            assert n_read > N_LARGE

        on_a_socket(use, "-to", "1")


N_LARGE = 8_000_000


async def large(request: Request, state: ServerState) -> Response:
    return Response(b"a" * N_LARGE)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def serve_health_by(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_app(state: ServerState) -> Router:
        return Router(state, [Route("GET", ("/health",), handler)])

    monkeypatch.setattr(serving, "make_app", make_app)
