"""The event loop's side of the engine: tasks go in, each task's events come out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mlxserver.engine.block_feed import BlockFeed
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.mailbox import (
    AdapterInfo,
    Cancel,
    EndReasoning,
    LoadAdapter,
    Message,
    SlotAction,
    SlotActionKind,
    SlotOutcome,
    StopAt,
    Submit,
    UnloadAdapter,
)
from mlxserver.engine.task import Event, Failed, Finished, Snapshot, Task, Token
from mlxserver.kv.block_ledger import BlockChange

if TYPE_CHECKING:
    from mlxserver.engine.engine import Engine

log = logging.getLogger("mlxserver.srv")

T = TypeVar("T")

MAX_UNREAD = 65_536
"""Tokens, and candidates beside them, that a client may leave unread; its task ends then."""


class Run:
    """A submitted task. ``children`` are the other completions of an ``n_cmpl`` > 1 request."""

    def __init__(self, client: EngineClient, task_id: int, children: tuple[Run, ...] = ()) -> None:
        self.task_id = task_id
        self.children = children
        self._client = client
        self._pending: list[Event] = []
        self._n_unread = 0
        self._waiter: asyncio.Future[None] | None = None

    async def events(self) -> list[Event]:
        """Everything that arrived since the last call; waits for at least one event.

        For one caller at a time.
        """
        while not self._pending:
            self._waiter = self._client.new_waiter()
            await self._waiter
        events, self._pending, self._n_unread = self._pending, [], 0
        return events

    def stop(self, n_generated: int) -> None:
        """The text ended with the ``n_generated``-th token; a Finished event with reason ``stop`` follows."""
        self._client.post(StopAt(self.task_id, n_generated))

    def end_reasoning(self) -> None:
        """Reasoning, if the task is at it, ends with its next token."""
        self._client.post(EndReasoning(self.task_id))

    def cancel(self) -> None:
        """Free the slot; no event follows. Harmless when the task has ended."""
        self._client.forget(self.task_id)

    def deliver(self, event: Event) -> bool:
        """False for a run whose events nobody reads: it has failed, and its task is to be cancelled."""
        self._pending.append(event)
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if isinstance(event, Token):
            self._n_unread += 1 if event.probs is None else 1 + len(event.probs.top)
        if self._n_unread <= MAX_UNREAD:
            return True
        self._pending.append(Failed(self.task_id, "server_error", "The answer is read too slowly"))
        return False


class EngineClient:
    """Made on the event loop; its methods are for that loop only, ``receive`` is for the engine thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._engine: Engine | None = None
        self._config: EngineConfig | None = None
        self._runs: dict[int, Run] = {}
        self._ends: set[Callable[[str], None]] = set()
        """What tells each of those who wait for an answer of the engine's that none comes, and why."""
        self._end: tuple[str, str] | None = None
        self._ids = itertools.count()
        self.blocks = BlockFeed()

    def attach(self, engine: Engine, config: EngineConfig) -> None:
        self._engine, self._config = engine, config

    @property
    def config(self) -> EngineConfig:
        assert self._config is not None, "the engine is not ready"
        return self._config

    @property
    def n_slots(self) -> int:
        return self.config.n_slots

    @property
    def n_ctx(self) -> int:
        """The context of one slot."""
        return self.config.n_ctx_slot

    @property
    def n_open(self) -> int:
        """Tasks that run or wait for a slot."""
        return len(self._runs)

    def new_task_id(self) -> int:
        return next(self._ids)

    def new_waiter(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    def submit(self, task: Task) -> Run:
        children = tuple(Run(self, task_id) for task_id, _ in task.children)
        run = Run(self, task.id, children)
        for each in (run, *children):
            self._runs[each.task_id] = each
        if self._end is None:
            self.post(Submit(task))
        else:
            self._fail_runs(*self._end)
        return run

    def end(self, error_type: str, message: str) -> None:
        """The engine gives no more answers: whatever waits for one fails, and so does what comes later."""
        self._end = error_type, message
        self._fail_runs(error_type, message)
        for end in self._ends:
            end(message)

    def _fail_runs(self, error_type: str, message: str) -> None:
        self._dispatch([Failed(task_id, error_type, message) for task_id in self._runs])

    def forget(self, task_id: int) -> None:
        if self._runs.pop(task_id, None):
            self.post(Cancel(task_id))

    def post(self, message: Message) -> None:
        assert self._engine is not None, "the engine is not ready"
        self._engine.post(message)

    async def act(self, kind: SlotActionKind, slot: int, path: Path | None = None) -> SlotOutcome:
        """Save, restore or erase a slot as soon as it is idle."""
        return await self._answer(
            lambda reply: SlotAction(kind, slot, path, reply), lambda reason: SlotOutcome(error=reason)
        )

    async def load_adapter(self, path: str) -> AdapterInfo | str:
        """The adapter, once the model has it, or why it has not."""
        return await self._answer(lambda reply: LoadAdapter(path, reply), lambda reason: reason)

    async def _answer(
        self, message: Callable[[Callable[[T], None]], Message], refusal: Callable[[str], T]
    ) -> T:
        """What the engine replies to a message; ``refusal`` makes it where the engine has ended."""
        if self._end is not None:
            return refusal(self._end[1])
        done: asyncio.Future[T] = self._loop.create_future()

        def settle(outcome: T) -> None:
            if not done.done():
                done.set_result(outcome)

        def end(reason: str) -> None:
            settle(refusal(reason))

        self._ends.add(end)
        self.post(message(lambda outcome: self._call(settle, outcome)))
        try:
            return await done
        finally:
            self._ends.discard(end)

    def unload_adapter(self, digest: str) -> None:
        """Give back what was loaded once; the weights go when nobody has them and the last task has ended."""
        if self._end is None:
            self.post(UnloadAdapter(digest))

    def snapshot(self) -> Snapshot:
        assert self._engine is not None, "the engine is not ready"
        return self._engine.snapshot()

    @property
    def block_root(self) -> bytes:
        assert self._engine is not None, "the engine is not ready"
        return self._engine.block_root

    def receive_blocks(self, changes: list[BlockChange]) -> None:
        """Called by the engine thread where blocks are told of."""
        self._call(self.blocks.take_in, changes)

    def receive(self, events: list[Event]) -> None:
        """Called by the engine thread once a step: one wake-up of the loop for all its events."""
        self._call(self._dispatch, events)

    def _call(self, function: Callable[[T], None], argument: T) -> None:
        """From the engine thread, which may outlive the loop."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            run = self._runs.get(event.task_id)
            if run is None:
                continue
            try:
                is_read = run.deliver(event)
            except Exception:
                log.exception("an event cannot be delivered")
                event, is_read = Failed(event.task_id, "server_error", "Internal engine error."), False
                run.deliver(event)
                self.post(Cancel(event.task_id))
            if isinstance(event, (Finished, Failed)):
                del self._runs[event.task_id]
            elif not is_read:
                self.forget(event.task_id)
