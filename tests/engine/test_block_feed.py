"""Listeners of the blocks hear what is held, then what changes, and never hold the server up."""

from __future__ import annotations

import asyncio

import pytest

from mlxserver.engine import block_feed
from mlxserver.engine.block_feed import BlockFeed
from mlxserver.kv.block_ledger import Block, BlockChange


def change(n: int, kind: str = "stored", tier: str = "ram", adapter_id: str = "") -> BlockChange:
    return BlockChange(kind, tier, Block(bytes([n]), b"", 32, adapter_id))  # type: ignore[arg-type]


async def heard(feed: BlockFeed, n: int) -> list[list[int]]:
    found = []
    async for changes in feed.listen():
        found.append([each.block.hash[0] for each in changes])
        if len(found) == n:
            break
    return found


def test_a_newcomer_hears_what_is_held() -> None:
    async def run() -> None:
        feed = BlockFeed()
        feed.take_in([change(1), change(2), change(1, "removed"), change(3, tier="slot")])
        assert await heard(feed, 2) == [[2], [3]]

    asyncio.run(run())


def test_changes_are_grouped_by_kind_tier_and_adapter() -> None:
    async def run() -> None:
        feed = BlockFeed()
        listening = asyncio.create_task(heard(feed, 4))
        await asyncio.sleep(0)
        feed.take_in(
            [change(1), change(2), change(3, adapter_id="x"), change(4, tier="slot"), change(1, "removed")]
        )
        assert await listening == [[1, 2], [3], [4], [1]]

    asyncio.run(run())


def test_who_falls_behind_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_feed, "MAX_BEHIND", 3)

    async def run() -> None:
        feed = BlockFeed()
        listening = asyncio.create_task(heard(feed, 99))
        await asyncio.sleep(0)
        feed.take_in([change(n) for n in range(4)])
        assert await asyncio.wait_for(listening, 5) == []
        assert feed._listeners == set()

    asyncio.run(run())


def test_nothing_is_kept_for_a_listener_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has stopped reading may stay so for as long as the server runs."""
    monkeypatch.setattr(block_feed, "MAX_BEHIND", 3)

    async def run() -> None:
        feed = BlockFeed()
        stream = feed.listen()
        feed.take_in([change(1)])
        assert len(await anext(stream)) == 1
        (listener,) = feed._listeners
        for n in range(9):
            feed.take_in([change(n)])
        assert listener._changes == []
        assert [each async for each in stream] == []

    asyncio.run(run())


def test_the_end_of_the_server_ends_the_listeners() -> None:
    async def run() -> None:
        feed = BlockFeed()
        listening = asyncio.create_task(heard(feed, 99))
        await asyncio.sleep(0)
        feed.end()
        assert await asyncio.wait_for(listening, 5) == []

    asyncio.run(run())
