"""The whole application around a scripted engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
from starlette.testclient import TestClient

from mlxserver.api.app import make_app
from mlxserver.api.state import ServerState
from mlxserver.chat.template import make_template
from mlxserver.engine.task import Counters, SlotView, Snapshot
from tests.api.fake_engine import FakeEngine, fake_state


def served_state(*argv: str, engine: FakeEngine | None = None, **info: Any) -> ServerState:
    """A loaded server with the options of a command line; its template is chatml unless told otherwise."""
    state = fake_state(engine or FakeEngine("ok"), *argv, **info)
    assert state.ready is not None
    options = state.options
    template = make_template(options.chat_template, options.jinja, state.model.info.chat_template)
    state.ready = replace(state.ready, template=template)
    return state


def served(*argv: str, engine: FakeEngine | None = None, **info: Any) -> TestClient:
    return client_of(served_state(*argv, engine=engine, **info))


def client_of(state: ServerState) -> TestClient:
    return TestClient(make_app(state), raise_server_exceptions=False)


def async_client(state: ServerState) -> httpx.AsyncClient:
    """For requests that share one event loop; answers are read to their end."""
    transport = httpx.ASGITransport(make_app(state))
    return httpx.AsyncClient(transport=transport, base_url="http://testserver")


class WatchedEngine(FakeEngine):
    """An engine with a snapshot to show."""

    def __init__(self, *slots: SlotView, counters: Counters | None = None, deferred: int = 0) -> None:
        super().__init__("ok")
        self.shown = Snapshot(slots, counters or Counters(), deferred)

    def snapshot(self) -> Snapshot:
        return self.shown
