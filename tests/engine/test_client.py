"""The event loop's side of a task whose client does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from mlxserver.engine import client
from mlxserver.engine.client import EngineClient, Run
from mlxserver.engine.mailbox import Cancel, Message, Submit
from mlxserver.engine.task import Candidate, Event, Failed, Task, Token, TokenProbs
from tests.engine.bench import CONFIG

PROBS = TokenProbs(Candidate(1, 0.0), tuple(Candidate(i, -1.0) for i in range(9)))


def deliver(tokens: list[Token], pauses: Collection[int] = ()) -> tuple[list[Event], list[Message], int]:
    """What the reader finds who reads at ``pauses`` and at the end; what the engine was told; open tasks."""

    async def run() -> tuple[list[Event], list[Message], int]:
        posted: list[Message] = []
        engine: Any = SimpleNamespace(post=posted.append)
        used = EngineClient(asyncio.get_running_loop())
        used.attach(engine, CONFIG)
        found: list[Event] = []
        started: Run = used.submit(Task(7, (1, 2)))
        for number, token in enumerate(tokens):
            if number in pauses:
                found += await started.events()
            used._dispatch([token])
        found += await started.events()
        return found, [m for m in posted if not isinstance(m, Submit)], used.n_open

    return asyncio.run(run())


@pytest.mark.parametrize(("probs", "n_kept"), [(None, 21), (PROBS, 3)])
def test_what_nobody_reads_is_bounded_and_its_task_ends(
    monkeypatch: pytest.MonkeyPatch, probs: TokenProbs | None, n_kept: int
) -> None:
    monkeypatch.setattr(client, "MAX_UNREAD", 20)
    found, posted, n_open = deliver([Token(7, 1, 0.0, probs)] * 100)
    assert found[-1] == Failed(7, "server_error", "The answer is read too slowly")
    assert len(found) == n_kept + 1
    assert (posted, n_open) == ([Cancel(7)], 0)


def test_a_reader_that_comes_in_time_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_UNREAD", 20)
    found, posted, n_open = deliver([Token(7, 1, 0.0)] * 60, {20, 40})
    assert (len(found), posted, n_open) == (60, [], 1)
