"""A client that goes away frees its slots, whatever its request was doing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from mlxserver.api.completion_runner import respond
from mlxserver.api.completions import completion
from mlxserver.api.errors import ApiError
from tests.api.fake_engine import FakeEngine, fake_state


class Connection:
    """Sends one body, then stays open until ``leave``."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._left = asyncio.Event()
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self.sent: list[Any] = []

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def request(self) -> Request:
        return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, self.receive)


async def run(engine: FakeEngine, body: dict[str, Any], steps: int) -> None:
    connection = Connection({"prompt": "hi"} | body)
    request = connection.request

    async def serve() -> None:
        response = await completion(request, fake_state(engine))
        await response(request.scope, connection.receive, connection.send)

    serving = asyncio.create_task(serve())
    for _ in range(steps):
        await asyncio.sleep(0)
    assert not serving.done()
    assert not any(run.cancelled for run in engine.runs)
    connection.leave()
    await asyncio.wait_for(serving, 5)


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"prompt": ["a", "b"]}, {"n_cmpl": 2}])
@pytest.mark.parametrize("hangs_after", [0, 1, 3])
def test_disconnect_cancels(body: dict[str, Any], hangs_after: int) -> None:
    engine = FakeEngine("abcdefgh", hangs_after=hangs_after)
    asyncio.run(run(engine, body, steps=60))
    assert engine.runs and all(run.cancelled for run in engine.runs)


def test_handler_that_is_cancelled_cancels() -> None:
    engine = FakeEngine("abc", hangs_after=1)

    async def main() -> None:
        connection = Connection({})
        state = fake_state(engine)
        serving = asyncio.create_task(respond(connection.request, state, {"prompt": "x"}, lambda _: None))  # type: ignore[arg-type, return-value]
        await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(main())
    assert engine.runs[0].cancelled


def test_a_bad_request_starts_nothing() -> None:
    engine = FakeEngine("abc")
    with pytest.raises(ApiError):
        asyncio.run(
            completion(Connection({"prompt": ["a", "b"], "n_predict": -2}).request, fake_state(engine))
        )
    assert not engine.runs
