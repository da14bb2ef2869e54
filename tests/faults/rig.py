"""The whole server on a tiny model in this process: requests go through the application, nothing is faked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from mlxserver.api.adapter_list import AdapterList
from mlxserver.api.app import make_app
from mlxserver.api.state import Ready, ServerState
from mlxserver.chat.template import make_template
from mlxserver.engine import adapters as engine_adapters
from mlxserver.engine.client import EngineClient
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.engine import Engine
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Task
from mlxserver.models.model import Model, ModelInfo
from mlxserver.options.options import parse_command_line
from tests.engine.bench import Letters
from tests.models import tiny
from tests.parity.adapted import load_by_seed

SIZES = "-c 1024 -np 4 -b 64 -ub 32 -ctk f32 -ctv f32 --slots --metrics --embeddings --pooling mean".split()
HEAD_DIM = 64
"""So that a MiB holds about 500 tokens of the models that have one."""


def build(kind: str) -> Any:
    return (
        getattr(tiny, kind)() if kind in ("mamba2", "falcon_h1") else getattr(tiny, kind)(head_dim=HEAD_DIM)
    )


@dataclass(frozen=True)
class Ask:
    """A request; its name is unique among those of a test."""

    name: str
    path: str
    body: Any = None
    leaves_after: float | None = None
    """Seconds after which the client goes away."""


CUT_OFF = {"code": 500, "message": "the connection breaks", "type": "server_error"}
"""How a client sees a stream that ends before its end."""


@dataclass(frozen=True)
class Outcome:
    """``text``: all that must be the same each time. ``error``: the error object, or None."""

    status: int
    text: Any
    error: dict[str, Any] | None


current: ContextVar[str] = ContextVar("current", default="")
"""The name of the request that the code at hand works for."""


@dataclass
class Rig:
    engine: Engine
    state: ServerState
    http: httpx.AsyncClient
    errors: list[BaseException]
    names: dict[int, str] = field(default_factory=dict)
    """Task id -> the request that it belongs to."""

    @property
    def scheduler(self) -> Scheduler:
        assert self.engine._scheduler is not None
        return self.engine._scheduler

    async def ask(self, ask: Ask) -> Outcome:
        current.set(ask.name)
        if ask.body is None:
            response = await self.http.get(ask.path)
        else:
            response = await self.http.post(ask.path, json=ask.body)
        return outcome(ask, response)

    async def all(self, asks: list[Ask]) -> dict[str, Outcome]:
        """All at once, each in a context of its own."""
        found = await asyncio.wait_for(asyncio.gather(*map(self._in_turn, asks)), 30)
        return {ask.name: each for ask, each in zip(asks, found, strict=True)}

    async def _in_turn(self, ask: Ask) -> Outcome:
        asking = asyncio.create_task(self.ask(ask))
        if ask.leaves_after is None:
            return await asking
        await asyncio.wait([asking], timeout=ask.leaves_after)
        asking.cancel()
        await asyncio.wait([asking])
        return Outcome(0, None, None)

    async def settle(self) -> None:
        """Until no slot is busy and nobody waits."""
        begin = time.monotonic()
        while True:
            found = self.engine.snapshot()
            if not found.deferred and not any(slot.is_processing for slot in found.slots):
                return
            assert time.monotonic() - begin < 20, "a slot is not free, or somebody waits"
            await asyncio.sleep(0.002)

    def check_books(self) -> None:
        """The books of slots, trie and restores, from outside while the engine rests."""
        with self.engine._lock:
            self.scheduler.check()
            trie = self.scheduler.reuse._trie
            if trie is not None:
                trie.check()
                assert not any(node.pins for node in trie.nodes())
                assert trie.reserved == 0


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, kind: str, *argv: str) -> AsyncGenerator[Rig]:
    """Two adapters are there, and what ``--lora-dir`` names has a third: a file called ``3``."""
    monkeypatch.setattr(engine_adapters, "load_adapter", lambda path, model: load_by_seed(path[-1], model))
    loop = asyncio.get_running_loop()
    client, ready, errors = EngineClient(loop), loop.create_future(), []
    options = parse_command_line(["-m", "tiny.gguf", *SIZES, *argv], {})
    info = ModelInfo("tiny", "tiny", tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32")

    def load() -> tuple[Model, EngineConfig]:
        config = replace(EngineConfig.from_options(options, info.n_ctx_train), lora=("1", "2"))
        return Model(build(kind), Letters(frozenset({0})), info), config

    def on_ready(*loaded: Any) -> None:
        loop.call_soon_threadsafe(ready.set_result, loaded)

    def on_failed(error: BaseException) -> None:
        errors.append(error)
        loop.call_soon_threadsafe(give_up, error)

    def give_up(error: BaseException) -> None:  # as mlxserver.serving does
        if not ready.done():
            ready.set_exception(error)
            return
        state.failed = True
        client.end("server_error", "The engine has failed")

    engine = Engine(load, client.receive, on_ready, on_failed, client.receive_blocks)
    engine.start()
    model, config, adapters = await ready
    client.attach(engine, config)
    template = make_template(options.chat_template, options.jinja, info.chat_template)
    state = ServerState(options, Ready(model, client, template, AdapterList(adapters, [0.0, 0.0])))
    transport = httpx.ASGITransport(make_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://rig", timeout=120) as http:
        rig = Rig(engine, state, http, errors)
        client.submit = _noting(rig, client.submit)  # type: ignore[method-assign]
        try:
            yield rig
        finally:
            await asyncio.to_thread(engine.close, 30)


def _noting(rig: Rig, submit: Callable[[Task], Any]) -> Callable[[Task], Any]:
    def noting(task: Task) -> Any:
        for task_id in (task.id, *(child for child, _ in task.children)):
            rig.names[task_id] = current.get()
        return submit(task)

    return noting


def outcome(ask: Ask, response: httpx.Response) -> Outcome:
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        values = [
            line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")
        ]
        events = [json.loads(value) for value in values if value != "[DONE]"]
        error = next((event["error"] for event in events if "error" in event), None)
        if error is None and values[-1:] != ["[DONE]"] and not (events and events[-1].get("stop")):
            error = CUT_OFF
        return Outcome(response.status_code, _texts(events), error)
    value = response.json() if "json" in response.headers.get("content-type", "") else response.text
    if response.status_code != 200:
        assert isinstance(value, dict) and set(value) == {"error"}, (ask.name, response.status_code, value)
        return Outcome(response.status_code, None, value["error"])
    return Outcome(200, _texts([value]), None)


def _texts(values: list[Any]) -> list[Any]:
    """Tokens and texts without times, counts and ids."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list):
            found += _texts(value)
        elif isinstance(value, dict) and "choices" in value:
            for choice in value["choices"]:
                part = choice.get("message") or choice.get("delta") or {}
                found += [text for text in (part.get("content"), choice.get("text")) if text]
        elif isinstance(value, dict) and "embedding" in value:
            found.append([[round(x, 4) for x in vector] for vector in value["embedding"]])
        elif isinstance(value, dict) and value.get("tokens"):
            found += value["tokens"]
    return found
