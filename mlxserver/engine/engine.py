"""The engine thread: loads the model, then plan -> run -> commit until it is closed."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import mlx.core as mx

from mlxserver.engine.adapters import AdapterActions
from mlxserver.engine.assembly import Assembly, Parts
from mlxserver.engine.block_watch import BlockWatch
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.mailbox import (
    ENGINE_THREAD,
    AdapterInfo,
    Cancel,
    Close,
    EndReasoning,
    LoadAdapter,
    Message,
    SlotAction,
    StopAt,
    Submit,
    UnloadAdapter,
    Wake,
)
from mlxserver.engine.pulse import Pulse
from mlxserver.engine.reader import Arrived
from mlxserver.engine.runner import Step
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.task import Event, Failed, MemoryStats, Snapshot
from mlxserver.kv.block_ledger import BlockChange
from mlxserver.models.device import on_metal, wire_memory
from mlxserver.models.errors import ModelError
from mlxserver.models.model import Model
from mlxserver.options.environment import shows_slot_texts

log = logging.getLogger("mlxserver.srv")

MAX_FAILURES = 3
"""Errors outside every task, one after the other with nothing done between them, that end the engine."""
LAST_WRITES_SECONDS = 3.0
"""How long writing state to disk may take once the engine stops."""


class Engine:
    """One thread that owns every array. Messages go in through ``post``, lists of events out of ``emit``.

    ``load`` runs on that thread and gives the model and the sizes. ``on_ready`` or ``on_failed`` is then
    called once, on that thread too; ``on_failed`` also when the engine cannot go on, and then ends.
    ``emit_blocks`` gets what changed of the stored blocks (``--kv-events``).
    """

    def __init__(
        self,
        load: Callable[[], tuple[Model, EngineConfig]],
        emit: Callable[[list[Event]], None],
        on_ready: Callable[[Model, EngineConfig, list[AdapterInfo]], None],
        on_failed: Callable[[BaseException], None],
        emit_blocks: Callable[[list[BlockChange]], None] = lambda changes: None,
    ) -> None:
        self._load = load
        self._emit = emit
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._emit_blocks = emit_blocks
        self.pulse = Pulse()
        self._blocks: BlockWatch | None = None
        self._mailbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._actions: list[SlotAction] = []
        self._adapter_wishes: list[LoadAdapter | UnloadAdapter] = []
        self._unsent: list[Event] = []
        self._reasoning_ends: list[int] = []
        self._pending: Step | None = None
        self._t_collected = 0.0
        self._n_posted = self._n_read = 0
        self._n_failures = 0
        self._closing = False
        self._launches_block = not on_metal()
        self._shows_tokens = shows_slot_texts(os.environ)
        self._thread = threading.Thread(target=self._main, name=ENGINE_THREAD, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def post(self, message: Message) -> None:
        self._n_posted += isinstance(message, Submit)
        self._mailbox.put(message)

    @property
    def block_root(self) -> bytes:
        """The parent of each first block; empty where blocks are not told of."""
        return self._blocks.root if self._blocks else b""

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the step that it is in."""
        self.post(Close())
        if self._thread.is_alive():
            self._thread.join(timeout)

    def snapshot(self) -> Snapshot:
        """The slots and counters as they are now; never waits for a step."""
        assert self._scheduler is not None, "the engine is not ready"
        with self._lock:
            snapshot = self._scheduler.snapshot(self._shows_tokens, self._n_posted - self._n_read)
        memory = MemoryStats(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())
        return replace(snapshot, memory=memory)

    def _main(self) -> None:
        assembly = None
        try:
            wire_memory()
            model, config = self._load()
            assembly = Assembly(model, config, self.post)
            self._blocks = assembly.blocks
            parts = assembly.build()
            self._scheduler = parts.scheduler
            self._on_ready(model, config, [assembly.adapters.load(path) for path in config.lora])
            self._run(assembly, parts)
        except BaseException as error:  # a panic of a native library is no Exception
            self._on_failed(error)
        finally:
            self.pulse.rest()
            if assembly is not None:
                assembly.close(LAST_WRITES_SECONDS)
            mx.clear_streams()  # a stream that outlives its thread aborts the process at its end

    # ------------------------------------------------------------ failures

    def _run(self, assembly: Assembly, parts: Parts) -> None:
        """Rounds until it is closed; an error outside every task costs what runs and what is stored.

        Raises the error that it cannot go on from.
        """
        spoilt = False
        while not self._closing:
            try:
                if spoilt:
                    self.pulse.enter("starting again")
                    parts = self._replace(parts.scheduler, assembly.rebuild())
                    spoilt = False
                self._round(parts, assembly.adapters)
                self._n_failures = 0
            except BaseException:
                log.exception("the engine failed")
                spoilt, self._pending = True, None
                self._flush(parts.scheduler)
                self._emit_failures(parts.scheduler.running())
                self._n_failures += 1
                if self._n_failures >= MAX_FAILURES:
                    raise
        if not spoilt:
            _write_all(parts)

    def _replace(self, old: Scheduler, parts: Parts) -> Parts:
        """The tasks that wait for a slot lose nothing, so they go on waiting."""
        with self._lock:
            parts.scheduler.inherit(old)
            self._scheduler = parts.scheduler
        return parts

    def _emit_failures(self, task_ids: Iterable[int]) -> None:
        self._emit([Failed(task_id, "server_error", "Internal engine error.") for task_id in task_ids])

    # -------------------------------------------------------------- rounds

    def _round(self, parts: Parts, adapters: AdapterActions) -> None:
        """Read the mail, launch a step, take in what the one before gave."""
        scheduler, runner, enter = parts.scheduler, parts.runner, self.pulse.enter
        enter("loading or forgetting an adapter")
        self._tend(scheduler, adapters)
        enter("writing state")
        if parts.writes is not None:
            parts.writes.work()
        idle = all(slot.is_idle for slot in scheduler.slots) and not self._actions
        rests = self._pending is None and idle and not (parts.writes and parts.writes.is_busy)
        if rests:
            scheduler.check()
            self._n_failures = 0
        self._read_mail(scheduler, _patience(parts) if rests else 0.0)
        enter("slot action")
        self._act(parts)
        if self._pending and runner.needs_host(self._pending.plan.decodes):
            self._take_in(parts)
        enter("plan")
        with self._lock:
            plan = scheduler.plan()
        # where a launch takes as long as its step, streams would get their tokens a chunk later for nothing
        apart = plan.grows or (self._launches_block and plan.n_prompt > 0)
        if self._pending and apart:
            self._take_in(parts)
        t_launch = time.perf_counter()
        enter("launch")
        step = runner.launch(plan) if plan.has_work else None
        if step:
            step.is_ahead = self._pending is not None
        if self._pending:
            self._commit(parts, self._pending, step)
        elif step:
            self._t_collected = t_launch
        self._pending = step
        if apart:
            self._take_in(parts)
        self._flush(scheduler)

    def _take_in(self, parts: Parts) -> None:
        """Take in what the step under way gave, before another one is launched."""
        assert self._pending is not None
        self._commit(parts, self._pending, None)
        self._pending = None

    def _commit(self, parts: Parts, step: Step, ahead: Step | None) -> None:
        """Take in what a step gave. ``ahead`` is launched already."""
        self.pulse.enter("collect")
        result = parts.runner.collect(step)
        now = time.perf_counter()
        seconds, self._t_collected = now - self._t_collected, now
        scheduler, plan = parts.scheduler, step.plan
        with self._lock:
            # a launch may block while the device is busy: between steps of one kind, or for one by itself, is
            # the time a step's
            of_a_kind = ahead is None or bool(ahead.plan.n_prompt) == bool(plan.n_prompt)
            if of_a_kind and not plan.grows and step.is_ahead == (ahead is not None):
                scheduler.pace.ran(seconds, plan.shapes, len(plan.decodes))
            scheduler.commit(plan, result)
        self._flush(scheduler)

    def _read_mail(self, scheduler: Scheduler, seconds: float | None) -> None:
        """Wait for a first message, for ever where ``seconds`` is None."""
        try:
            while True:
                self.pulse.rest()
                message = self._mailbox.get(block=seconds != 0, timeout=seconds)
                self.pulse.enter("reading messages")
                seconds = 0.0
                with self._lock:
                    self._handle(scheduler, message)
        except queue.Empty:
            pass

    def _act(self, parts: Parts) -> None:
        """Carry out the slot actions whose slot is idle; the others wait for theirs."""
        scheduler = parts.scheduler
        while self._reasoning_ends:
            parts.runner.end_reasoning(self._reasoning_ends.pop())
        for action in list(self._actions):
            slot = scheduler.reserve(action.slot)
            if slot.is_idle:
                self._actions.remove(action)
                action.reply(parts.actions.carry_out(action, slot))
                with self._lock:
                    scheduler.give_back(slot)

    def _tend(self, scheduler: Scheduler, adapters: AdapterActions) -> None:
        """Load the adapters that were asked for, drop those that nobody uses any more."""
        while self._adapter_wishes:
            wish = self._adapter_wishes.pop(0)
            if isinstance(wish, LoadAdapter):
                wish.reply(_outcome(adapters, wish.path))
            else:
                adapters.unload(wish.digest)
        if not adapters.is_tidy:
            adapters.tidy(scheduler.adapters_in_use())

    def _handle(self, scheduler: Scheduler, message: Message) -> None:
        match message:
            case Submit(task):
                self._n_read += 1
                try:
                    scheduler.submit(task)
                except BaseException:
                    self._emit_failures([task.id, *(task_id for task_id, _ in task.children)])
                    raise
            case Cancel(task_id):
                with self._kept_if_it_fails(message):
                    scheduler.cancel(task_id)
            case StopAt(task_id, n_generated):
                scheduler.stop(task_id, n_generated)
            case EndReasoning(task_id):
                self._reasoning_ends.append(task_id)
            case SlotAction():
                self._actions.append(message)
                scheduler.reserve(message.slot)
            case LoadAdapter() | UnloadAdapter():
                self._adapter_wishes.append(message)
            case Wake():
                pass  # what there is to tell is told at the round's end
            case Arrived():
                scheduler.arrived(message)
            case Close():
                self._closing = True

    @contextmanager
    def _kept_if_it_fails(self, message: Message) -> Iterator[None]:
        """A task that waits goes on after an error, and nobody would ask again to end it."""
        try:
            yield
        except BaseException:
            self._mailbox.put(message)
            raise

    def _flush(self, scheduler: Scheduler) -> None:
        self._unsent += scheduler.take_events()
        if self._unsent:
            self._emit(self._unsent)  # where that fails they are sent with the failures of those that run
            self._unsent = []
        if self._blocks:
            self._blocks.look(scheduler.slots)
            if changes := self._blocks.take():
                self._emit_blocks(changes)


def _patience(parts: Parts) -> float | None:
    """Seconds until there is something to do although no message comes; None for never."""
    times = [parts.scheduler.wake_at, parts.writes.wake_at if parts.writes else None]
    soonest = min((each for each in times if each is not None), default=None)
    return None if soonest is None else max(0.0, soonest - time.perf_counter())


def _write_all(parts: Parts) -> None:
    """At the end: what tasks that are under way have evaluated is worth keeping too."""
    if parts.writes is not None:
        for task_id in parts.scheduler.running():
            parts.scheduler.cancel(task_id)
        parts.writes.finish(LAST_WRITES_SECONDS / 3)


def _outcome(adapters: AdapterActions, path: str) -> AdapterInfo | str:
    """The adapter, or why there is none."""
    try:
        return adapters.load(path)
    except ModelError as error:
        return str(error)
    except Exception as error:
        log.exception("an adapter failed to load")
        return type(error).__name__
