"""GET /kv-events: what is stored, then what changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mlxserver.api import kv_events
from mlxserver.engine import block_feed
from mlxserver.engine.block_feed import BlockFeed
from mlxserver.kv.block_ledger import Block, BlockChange
from tests.api.fake_engine import FakeEngine
from tests.api.served import served, served_state


class Telling(FakeEngine):
    block_root = b"\x01" * 32

    def __init__(self) -> None:
        super().__init__("ok")
        self.blocks = BlockFeed()


def change(kind: Any, n: int, adapter_id: str = "") -> BlockChange:
    return BlockChange(kind, "ram", Block(bytes([n]) * 2, bytes([n - 1]) * 2, 32, adapter_id))


def test_it_is_off_unless_asked_for() -> None:
    answer = served(engine=Telling()).get("/kv-events")
    assert answer.status_code == 501
    assert "--kv-events" in answer.json()["error"]["message"]


def parsed(data: bytes) -> tuple[str, Any]:
    name, body = data.decode().strip().split("\n")
    return name.removeprefix("event: "), json.loads(body.removeprefix("data: "))


def test_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[tuple[str, Any]]:
        engine = Telling()
        events = kv_events._events(served_state("--kv-events", engine=engine))
        engine.blocks.take_in([change("stored", 1), change("stored", 2)])
        found = [parsed(await anext(events)), parsed(await anext(events))]
        engine.blocks.take_in([change("stored", 3, "ee"), change("removed", 2)])
        found += [parsed(await anext(events)), parsed(await anext(events))]
        monkeypatch.setattr(block_feed, "MAX_BEHIND", 0)
        engine.blocks.take_in([change("stored", 4)])
        return [*found, *[parsed(data) async for data in events]]

    def block(n: int) -> dict[str, Any]:
        return {"hash": f"{n:02}{n:02}", "parent": f"{n - 1:02}{n - 1:02}", "n_tokens": 32}

    assert asyncio.run(run()) == [
        ("start", {"block_size": 32, "root": "01" * 32, "adapters": []}),
        ("stored", {"tier": "ram", "adapter_id": "", "blocks": [block(1), block(2)]}),
        ("stored", {"tier": "ram", "adapter_id": "ee", "blocks": [block(3)]}),
        ("removed", {"tier": "ram", "adapter_id": "", "blocks": [block(2)]}),
        ("behind", {}),
    ]


def test_a_server_that_stops_says_nothing_of_being_behind() -> None:
    async def run() -> list[tuple[str, Any]]:
        engine = Telling()
        events = kv_events._events(served_state("--kv-events", engine=engine))
        found = [parsed(await anext(events))]
        waiting = asyncio.ensure_future(anext(events, None))
        await asyncio.sleep(0)
        engine.blocks.end()
        assert await waiting is None
        return found

    assert [name for name, _ in asyncio.run(run())] == ["start"]
