"""A fault at every point, at its first call and at a later one: whom it hits, what others get."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxserver.engine.plan import Plan
from mlxserver.engine.scheduler import Scheduler
from tests.faults.points import KINDS, POINTS, Point, Trap
from tests.faults.rig import Outcome, running
from tests.faults.scene import folders, generations, options_of, others, prepared, warm

TAKES_ALL = os.environ.get("MLXSERVER_TEST_FAULTS") == "all"


def cases() -> Iterator[Any]:
    """Both calls on a point's first kind of model, in turn one of them on the others."""
    for number, point in enumerate(POINTS):
        calls = (False, True) if point.later or point.after else (False,)
        for place, kind in enumerate(point.kinds):
            for is_later in calls if place == 0 or TAKES_ALL else calls[(number + place) % len(calls) :][:1]:
                name = f"{point.name}-{kind}-{'later' if is_later else 'first'}".replace(" ", "-")
                yield pytest.param(point, kind, is_later, id=name)


REFUSED = {"restore", "load"}
"""What llama-server answers with 400, whatever the reason."""


@pytest.mark.parametrize(("point", "kind", "is_later"), tuple(cases()))
def test_a_fault_hits_whom_it_belongs_to_and_nobody_else(
    point: Point,
    kind: str,
    is_later: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before the work of the first call, after that of the later one."""
    cold = prepared(kind, tmp_path / "state")
    trap = Trap(point, kind, (point.later or 1) if is_later else 1, is_later and point.after, monkeypatch)

    async def play() -> None:
        argv = [*options_of(kind), *point.argv, *folders(tmp_path / "state")]
        async with running(monkeypatch, kind, *argv) as rig:
            await warm(rig)
            trap.arm(rig)
            found = await rig.all([*generations(kind), *others(kind)])
            await rig.settle()
            assert rig.state.engine.n_open == 0
            judge(point, trap, found, cold)
            rig.check_books()
            assert (await rig.http.get("/health")).json() == {"status": "ok"}
            again = await rig.all(generations(kind))
            assert wrong(again, cold) == {}
            await rig.settle()
            rig.check_books()
            assert rig.errors == []

    asyncio.run(play())
    n_remade = sum("the engine failed" in record.message for record in caplog.records)
    assert n_remade == point.remakes


def judge(point: Point, trap: Trap, found: dict[str, Outcome], cold: dict[str, Outcome]) -> None:
    assert trap.owners is not None, f"only {trap.n_calls} calls came"
    failed = {name: each for name, each in found.items() if each.error is not None}
    expected = trap.owners & failed.keys() if point.may_have_ended else trap.owners
    assert failed.keys() == expected - {"left"}
    for name, each in failed.items():
        code, type = (400, "invalid_request_error") if name in REFUSED else (500, "server_error")
        assert each.error is not None and set(each.error) == {"code", "message", "type"}, name
        assert (each.error["code"], each.error["type"]) == (code, type), name
        assert each.status in (code, 200)
    assert wrong({name: each for name, each in found.items() if name not in failed}, cold) == {}


def wrong(found: dict[str, Outcome], cold: dict[str, Outcome]) -> dict[str, tuple[Outcome, Outcome]]:
    """Answers that are not those of a server that holds nothing."""
    return {
        name: (each, cold[name])
        for name, each in found.items()
        if name in cold and (each.error is not None or each.text != cold[name].text)
    }


def test_an_engine_that_cannot_go_on_answers_everybody_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process then ends with code 1 (tests/test_serving.py)."""

    async def play() -> None:
        async with running(monkeypatch, KINDS[0], *folders(tmp_path)) as rig:
            await warm(rig)

            def plan(self: Scheduler) -> Plan:
                raise RuntimeError("always")

            monkeypatch.setattr(Scheduler, "plan", plan)
            found = await rig.all(generations(KINDS[0]))
            assert {each.error["type"] for each in found.values() if each.error} == {"server_error"}
            assert all(each.error for each in found.values())
            while not rig.state.failed:
                await asyncio.sleep(0.01)
            health = await rig.http.get("/health")
            assert (health.status_code, health.json()["error"]["type"]) == (503, "unavailable_error")
            await asyncio.to_thread(rig.engine.close, 30)
            assert [str(error) for error in rig.errors] == ["always"] and not rig.engine.is_alive

    asyncio.run(play())
