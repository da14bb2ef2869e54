"""Connections that close at random moments, on a real socket and a real engine: nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.api.listening import Listening, listening, post
from tests.faults.rig import Ask, Rig, running
from tests.faults.scene import folders, generations, prepared, warm

KIND = "llama"
N_CLOSED = 120
STAYING = ("plain", "grammar", "copied", "many", "adapted", "disk")


def test_many_hang_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = prepared(KIND, tmp_path / "state")

    async def play() -> None:
        argv = ["--context-shift", *folders(tmp_path / "state")]
        async with running(monkeypatch, KIND, *argv) as rig, listening(rig.state) as server:
            await warm(rig)
            rng = random.Random(3)
            asks = generations(KIND)
            staying = [ask for ask in asks if ask.name in STAYING]
            hanging_up = [hang_up(server, rng, rng.choice(asks)) for _ in range(N_CLOSED)]
            *_, found = await asyncio.gather(*hanging_up, rig.all(staying))
            assert {name: each.text for name, each in found.items()} == {
                name: cold[name].text for name in STAYING
            }
            await nothing_left(rig, server)
            again = await rig.all(asks)
            assert {name: each.text for name, each in again.items()} == {
                ask.name: cold[ask.name].text for ask in asks
            }

    asyncio.run(play())


async def hang_up(server: Listening, rng: random.Random, ask: Ask) -> None:
    """Ask, and close at once, while waiting, after some of the answer, or while still sending."""
    await asyncio.sleep(rng.uniform(0, 1.5))
    raw = post(ask.path, {**ask.body, "n_predict": 150} if "n_predict" in ask.body else ask.body)
    reader, writer = await server.connect()
    how = rng.choice(["sending", "waiting", "waiting", "reading"])
    writer.write(raw[: rng.randrange(1, len(raw))] if how == "sending" else raw)
    if how == "reading":
        await reader.read(rng.randrange(1, 2000))
    else:
        await asyncio.sleep(rng.choice([0, 0.001, 0.01, 0.05]))
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def nothing_left(rig: Rig, server: Listening) -> None:
    await rig.settle()
    for _ in range(200):
        if server.n_connections == rig.state.engine.n_open == 0:
            break
        await asyncio.sleep(0.01)
    assert (server.n_connections, rig.state.engine.n_open) == (0, 0)
    rig.check_books()
    slots: Any = json.loads(
        (await server.ask(b"GET /slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).body
    )
    assert not any(slot["is_processing"] for slot in slots)
    await server.hang_up()
