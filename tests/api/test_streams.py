"""Streams that can be read again: replay, offsets, stopping, forgetting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from mlxserver.api import stream_replay
from mlxserver.api.sse_frame import text_frame
from mlxserver.api.state import ServerState
from mlxserver.api.stream_replay import ReplayStream, StreamRegistry
from tests.api.fake_engine import EOS, FakeEngine
from tests.api.served import async_client, served, served_state

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def state_with_stream() -> ServerState:
    return served_state(engine=FakeEngine([*b"ok", EOS]))


async def chat(client: httpx.AsyncClient, **body: Any) -> str:
    headers = {"X-Conversation-Id": "c"}
    return (await client.post("/v1/chat/completions", json=CHAT | body, headers=headers)).text


async def lookup(client: httpx.AsyncClient, *ids: Any) -> Any:
    return (await client.post("/v1/streams/lookup", json={"conversation_ids": ids})).json()


class TestRoutes:
    def test_a_finished_stream_is_sent_again(self) -> None:
        async def run() -> None:
            async with async_client(state_with_stream()) as client:
                first = await chat(client)
                again = await client.get("/v1/stream?conv_id=c")
                assert again.text == first
                assert again.headers["content-type"].startswith("text/event-stream")
                rest = await client.get("/v1/stream?conv_id=c&from=10")
                assert rest.text == first[10:]
                [found] = await lookup(client, "c", "d", 5)
                assert (found["conversation_id"], found["is_done"]) == ("c", True)
                assert found["total_bytes"] == len(first)
                assert found["completed_at"] >= found["started_at"] > 0

        asyncio.run(run())

    def test_a_stopped_stream_is_forgotten(self) -> None:
        async def run() -> None:
            async with async_client(state_with_stream()) as client:
                await chat(client)
                stopped = await client.delete("/v1/stream?conv_id=c")
                assert (stopped.status_code, stopped.text) == (204, "")
                assert (await client.get("/v1/stream?conv_id=c")).status_code == 404
                assert await lookup(client, "c") == []

        asyncio.run(run())

    @pytest.mark.parametrize("body", [{"stream": False}, {"max_tokens": -2}])
    def test_requests_without_a_stream_leave_nothing(self, body: dict[str, Any]) -> None:
        async def run() -> None:
            state = state_with_stream()
            async with async_client(state) as client:
                await chat(client, **body)
            assert state.streams.get("", "c") is None

        asyncio.run(run())

    @pytest.mark.parametrize("query", ["nine", "-1"])
    def test_bad_offsets(self, query: str) -> None:
        async def run() -> None:
            async with async_client(state_with_stream()) as client:
                await chat(client)
                response = await client.get(f"/v1/stream?conv_id=c&from={query}")
                message = "Invalid 'from' offset"
                assert (response.status_code, response.json()["error"]["message"]) == (400, message)

        asyncio.run(run())

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    def test_a_conversation_must_be_named(self, method: str) -> None:
        response = served().request(method, "/v1/stream")
        message = "Missing conversation id in path"
        assert (response.status_code, response.json()["error"]["message"]) == (400, message)

    def test_a_lookup_that_is_no_json(self) -> None:
        response = served().post("/v1/streams/lookup", content=b"{")
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert served().post("/v1/streams/lookup", json={"conversation_ids": "x"}).json() == []


async def numbers(*data: str) -> AsyncGenerator[bytes]:
    for item in data:
        yield text_frame(item)
        await asyncio.sleep(0)


async def read(stream: ReplayStream, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in stream.read(offset)])


async def forever(closed: list[bool]) -> AsyncGenerator[bytes]:
    try:
        while True:
            yield b"x"
            await asyncio.sleep(0)
    finally:
        closed.append(True)


def test_readers_get_what_comes_later_too() -> None:
    async def run() -> None:
        stream = StreamRegistry().open("", "c", numbers("1", "2"))
        whole, late = await asyncio.gather(read(stream), read(stream, 9))
        assert whole == b"data: 1\n\ndata: 2\n\n"
        assert late == whole[9:]

    asyncio.run(run())


def test_old_bytes_go_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_replay, "MAX_BYTES", 4)

    async def run() -> None:
        stream = ReplayStream("c")
        stream.append(b"abc")
        stream.append(b"def")
        stream.finish()
        assert (stream.n_dropped, stream.total_bytes) == (2, 6)
        assert await read(stream, 2) == b"cdef"
        assert await read(stream, 0) == b""

    asyncio.run(run())


def test_a_new_stream_of_a_conversation_stops_the_old_one() -> None:
    async def run() -> None:
        registry, closed = StreamRegistry(), list[bool]()
        old = registry.open("", "c", forever(closed))
        await asyncio.sleep(0.01)
        new = registry.open("", "c", numbers("1"))
        await asyncio.sleep(0.01)
        assert closed == [True]
        assert old.is_done
        assert registry.get("", "c") is new

    asyncio.run(run())


def test_a_stream_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        registry = StreamRegistry()
        stream = registry.open("", "c::model", numbers("1"))
        await read(stream)
        assert registry.matching("", ["c"]) == [stream]
        monkeypatch.setattr(stream_replay, "KEPT_SECONDS", -1)
        assert registry.matching("", ["c"]) == []

    asyncio.run(run())


def test_a_name_is_whole_up_to_its_double_colons() -> None:
    async def run() -> None:
        registry = StreamRegistry()
        streams = [registry.open("", name, numbers("1")) for name in ("c", "c::m", "c::m::x", "cc::m", "::c")]
        for names, found in ((["c"], [0, 1, 2]), (["c::m", "c"], [1, 2, 0, 1, 2]), (["c:", "m"], [])):
            assert registry.matching("", names) == [streams[number] for number in found]

    asyncio.run(run())


def test_ended_streams_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_replay, "MAX_ENDED_BYTES", 3 * (stream_replay.OVERHEAD + 9))

    async def run() -> None:
        registry, closed = StreamRegistry(), list[bool]()
        running = registry.open("", "running", forever(closed))
        for number in range(6):
            await read(registry.open("", str(number), numbers("1")))
        kept = [number for number in range(6) if registry.get("", str(number))]
        assert kept == [3, 4, 5]
        assert registry.get("", "running") is running
        registry.stop("", "running")

    asyncio.run(run())


class TestOwners:
    """A stream belongs to the key that began it."""

    def test_another_key_cannot_read_find_stop_or_replace_it(self) -> None:
        async def run() -> None:
            state = served_state("--api-key", "one,two", engine=FakeEngine([*b"ok", EOS]))
            async with async_client(state) as client:

                async def ask(key: str, method: str, path: str, **fields: Any) -> httpx.Response:
                    headers = {"Authorization": f"Bearer {key}", "X-Conversation-Id": "c"}
                    return await client.request(method, path, headers=headers, **fields)

                first = (await ask("one", "POST", "/v1/chat/completions", json=CHAT)).text
                found = {"json": {"conversation_ids": ["c"]}}
                assert (await ask("two", "GET", "/v1/stream?conv_id=c")).status_code == 404
                assert (await ask("two", "POST", "/v1/streams/lookup", **found)).json() == []
                assert (await ask("two", "DELETE", "/v1/stream?conv_id=c")).status_code == 204
                other = (await ask("two", "POST", "/v1/chat/completions", json=CHAT)).text
                assert (await ask("one", "GET", "/v1/stream?conv_id=c")).text == first != other
                assert (await ask("two", "GET", "/v1/stream?conv_id=c")).text == other
                assert len((await ask("one", "POST", "/v1/streams/lookup", **found)).json()) == 1

        asyncio.run(run())

    def test_a_lookup_names_few_conversations(self) -> None:
        answer = served().post("/v1/streams/lookup", json={"conversation_ids": ["c"] * 4097})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            400,
            "more than 4096 conversation ids",
        )
