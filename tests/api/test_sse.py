"""Event streams as ASGI messages: headers, writes, pings, and every way in which they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from starlette.types import ASGIApp

from mlxserver.api.app import make_app
from mlxserver.api.sse import PING, EventStream
from tests.api.fake_engine import FakeEngine, FakeRun
from tests.api.served import served_state

HEADERS = [
    (b"x-accel-buffering", b"no"),
    (b"cache-control", b"no-store"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
]
START = {"type": "http.response.start", "status": 200, "headers": HEADERS}
MESSAGES = [{"role": "user", "content": "x"}]
END = {"type": "http.response.body"}


class Client:
    """Takes what is sent, and stays until ``leave``."""

    def __init__(self, send: Callable[[Any], Awaitable[None]] | None = None, body: Any = None) -> None:
        self.sent: list[Any] = []
        self._body = body
        self._left = asyncio.Event()
        self._takes = send

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> Any:
        if self._body is not None:
            data, self._body = json.dumps(self._body).encode(), None
            return {"type": "http.request", "body": data, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._takes is not None:
            await self._takes(message)
        self.sent.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if "body" in message]

    async def get(self, app: ASGIApp, method: str = "GET", path: str = "/") -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await asyncio.wait_for(app(scope, self.receive, self.send), 5)


class Source:
    """Events with pauses before them; an exception is raised."""

    def __init__(self, *items: tuple[float, bytes | Exception]) -> None:
        self.items = items
        self.is_started = self.is_closed = False

    async def events(self) -> AsyncGenerator[bytes]:
        self.is_started = True
        try:
            for seconds, item in self.items:
                await asyncio.sleep(seconds)
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_closed = True


def test_what_is_sent() -> None:
    async def main() -> None:
        client, source = Client(), Source((0, b"a"), (0, b"b"))
        await client.get(EventStream(source.events()))
        body = {"type": "http.response.body", "more_body": True}
        assert client.sent == [START, body | {"body": b"a"}, body | {"body": b"b"}, END]
        assert source.is_closed

    asyncio.run(main())


def test_head_has_the_headers_only() -> None:
    async def main() -> None:
        client, source = Client(), Source((0, b"a"))
        await client.get(EventStream(source.events()), "HEAD")
        assert client.sent == [START, END]
        assert not source.is_started

    asyncio.run(main())


def test_a_client_that_leaves_closes_the_events() -> None:
    async def main() -> None:
        client, source = Client(), Source((0, b"a"), (60, b"b"))
        asyncio.get_running_loop().call_later(0.01, client.leave)
        await client.get(EventStream(source.events(), ping_interval=30))
        assert client.bodies == [b"a"]
        assert source.is_closed

    asyncio.run(main())


def test_an_error_of_the_events_is_raised() -> None:
    async def main() -> None:
        client, source = Client(), Source((0, b"a"), (0, KeyError("x")))
        with pytest.raises(KeyError):
            await client.get(EventStream(source.events(), ping_interval=30))
        assert client.sent[-1].get("more_body"), "the answer must not look whole"

    asyncio.run(main())


def test_a_client_that_takes_nothing_more_ends_the_stream() -> None:
    async def send(message: Any) -> None:
        if message.get("body"):
            raise TimeoutError

    async def main() -> None:
        client, source = Client(send), Source((0, b"a"), (60, b"b"))
        with pytest.raises(TimeoutError):
            await client.get(EventStream(source.events()))
        assert source.is_closed

    asyncio.run(main())


class TestPings:
    def test_only_silence_is_broken(self) -> None:
        async def main() -> None:
            client, source = Client(), Source(*[(0.02, b"a")] * 20, (0.35, b"b"))
            await client.get(EventStream(source.events(), 0.15))
            assert client.bodies == [b"a"] * 20 + [PING, PING, b"b"]
            assert client.sent[-1] == END

        asyncio.run(main())

    @pytest.mark.parametrize("interval", [0, -1])
    def test_none_are_wanted(self, interval: int) -> None:
        async def main() -> None:
            client, source = Client(), Source((0.05, b"a"))
            await client.get(EventStream(source.events(), interval))
            assert client.bodies == [b"a"]

        asyncio.run(main())

    def test_one_that_cannot_be_sent_ends_the_stream(self) -> None:
        async def send(message: Any) -> None:
            if message.get("body") == PING:
                raise TimeoutError

        async def main() -> None:
            client, source = Client(send), Source((60, b"a"))
            with pytest.raises(TimeoutError):
                await client.get(EventStream(source.events(), 0.01))
            assert source.is_closed

        asyncio.run(main())

    def test_none_comes_behind_the_end(self) -> None:
        """However long the last message takes."""

        async def send(message: Any) -> None:
            if message == END:
                await asyncio.sleep(0.1)

        async def main() -> None:
            client, source = Client(send), Source((0, b"a"))
            await client.get(EventStream(source.events(), 0.01))
            assert client.sent[-1] == END

        asyncio.run(main())


class _AtOnce(FakeRun):
    """All steps' events in one wake-up."""

    async def events(self) -> list[Any]:
        found = []
        while not (found and type(found[-1]).__name__ == "Finished"):
            found += await super().events()
        return found


class _AtOnceEngine(FakeEngine):
    def _run(self, task: Any, task_id: int, script: Any) -> FakeRun:
        return _AtOnce(task, task_id, list(script.encode()))


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_tokens_of_one_wake_up_are_one_write_of_several_events(path: str) -> None:
    async def writes(engine: FakeEngine) -> list[bytes]:
        client = Client(body={"stream": True, "max_tokens": 9, "prompt": "x", "messages": MESSAGES})
        await client.get(make_app(served_state(engine=engine)), "POST", path)
        return client.bodies

    async def main() -> None:
        one_by_one, at_once = await writes(FakeEngine("abc")), await writes(_AtOnceEngine("abc"))
        assert len(at_once) < 3 <= len(one_by_one)
        assert b"".join(at_once).count(b"\n\n") == b"".join(one_by_one).count(b"\n\n")

    asyncio.run(main())
