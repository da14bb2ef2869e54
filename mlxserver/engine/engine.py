"""The engine thread: loads the model, then plan -> run -> commit until it is closed."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.mailbox import Cancel, Close, Message, SlotAction, StopAt, Submit
from mlxserver.engine.mover import Mover
from mlxserver.engine.runner import Runner, Step
from mlxserver.engine.scheduler import Scheduler
from mlxserver.engine.slot_actions import SlotActions
from mlxserver.engine.task import Event, Snapshot
from mlxserver.kv.trie import PrefixTrie
from mlxserver.models.model import Model
from mlxserver.options.environment import shows_slot_texts

log = logging.getLogger("mlxserver.srv")


class Engine:
    """One thread that owns every array. Messages go in through ``post``, lists of events out of ``emit``.

    ``load`` runs on that thread and gives the model and the sizes; ``on_ready`` or ``on_failed`` is then
    called once, on that thread too.
    """

    def __init__(
        self,
        load: Callable[[], tuple[Model, EngineConfig]],
        emit: Callable[[list[Event]], None],
        on_ready: Callable[[Model, EngineConfig], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._load = load
        self._emit = emit
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._mailbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._actions: list[SlotAction] = []
        self._n_posted = self._n_read = 0
        self._closing = False
        self._shows_tokens = shows_slot_texts(os.environ)
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, message: Message) -> None:
        self._n_posted += isinstance(message, Submit)
        self._mailbox.put(message)

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the step that it is in."""
        self.post(Close())
        if self._thread.is_alive():
            self._thread.join(timeout)

    def snapshot(self) -> Snapshot:
        """The slots and counters as they are now; never waits for a step."""
        assert self._scheduler is not None, "the engine is not ready"
        with self._lock:
            return self._scheduler.snapshot(self._shows_tokens, self._n_posted - self._n_read)

    def _main(self) -> None:
        try:
            model, config = self._load()
            scheduler, runner, actions = _assemble(model, config)
        except Exception as error:
            self._on_failed(error)
            return
        self._scheduler = scheduler
        self._on_ready(model, config)
        self._loop(scheduler, runner, actions)

    def _loop(self, scheduler: Scheduler, runner: Runner, actions: SlotActions) -> None:
        pending: Step | None = None
        t_collected = time.perf_counter()
        while not self._closing:
            idle = all(slot.is_idle and not slot.is_reserved for slot in scheduler.slots)
            rests = pending is None and idle
            if rests:
                scheduler.check()
            self._read_mail(scheduler, wait=rests)
            self._act(scheduler, actions)
            if pending and runner.needs_host(pending.plan.decodes):
                t_collected = self._commit(scheduler, runner, pending, None, t_collected)
                pending = None
            with self._lock:
                plan = scheduler.plan()
            t_launch = time.perf_counter()
            step = runner.launch(plan) if plan.has_work else None
            if pending:
                t_collected = self._commit(scheduler, runner, pending, step, t_collected)
            elif step:
                t_collected = t_launch
            pending = step
            self._flush(scheduler)

    def _commit(
        self, scheduler: Scheduler, runner: Runner, step: Step, ahead: Step | None, since: float
    ) -> float:
        """Returns when the step was over; the one before was at ``since``. ``ahead`` is launched already."""
        result = runner.collect(step)
        now = time.perf_counter()
        plan = step.plan
        with self._lock:
            # a launch may block while the device is busy: only between steps of one kind is the time a step's
            if ahead is None or bool(ahead.plan.chunks) == bool(plan.chunks):
                scheduler.pace.ran(now - since, sum(len(c.tokens) for c in plan.chunks), len(plan.decodes))
            scheduler.commit(plan, result)
        self._flush(scheduler)
        return now

    def _read_mail(self, scheduler: Scheduler, wait: bool) -> None:
        try:
            while True:
                message = self._mailbox.get(block=wait)
                wait = False
                with self._lock:
                    self._handle(scheduler, message)
        except queue.Empty:
            pass

    def _act(self, scheduler: Scheduler, actions: SlotActions) -> None:
        """Carry out the slot actions whose slot is idle; the others wait for theirs."""
        waiting, self._actions = self._actions, []
        for action in waiting:
            slot = scheduler.slots[action.slot % len(scheduler.slots)]
            if not slot.is_idle:
                slot.is_reserved = True
                self._actions.append(action)
                continue
            outcome = actions.carry_out(action, slot)
            with self._lock:
                scheduler.give_back(slot)
            action.reply(outcome)

    def _handle(self, scheduler: Scheduler, message: Message) -> None:
        match message:
            case Submit(task):
                self._n_read += 1
                scheduler.submit(task)
            case Cancel(task_id):
                scheduler.cancel(task_id)
            case StopAt(task_id, n_generated):
                scheduler.stop(task_id, n_generated)
            case SlotAction():
                scheduler.reserve(message.slot)
                self._actions.append(message)
            case Close():
                self._closing = True

    def _flush(self, scheduler: Scheduler) -> None:
        if events := scheduler.take_events():
            self._emit(events)


def _assemble(model: Model, config: EngineConfig) -> tuple[Scheduler, Runner, SlotActions]:
    import mlx.core as mx

    from mlxserver.engine.batch_check import rows_agree
    from mlxserver.kv.slot_states import SlotStates, kv_dtype
    from mlxserver.models.caches import cache_maker
    from mlxserver.sampling.sampler import Sampler

    make_cache = cache_maker(model.module, config.swa_full)
    types = kv_dtype(config.cache_type_k), kv_dtype(config.cache_type_v)
    states = SlotStates(make_cache, config.n_slots, *types)
    alone = bool(states.alone)
    if alone:
        log.warning("slots decode one by one: %s cannot be batched", ", ".join(states.alone))
    elif config.n_slots > 1 and config.warmup and not rows_agree(model.module, make_cache):
        log.warning("slots decode one by one: %s gives other results in a batch", model.info.architecture)
        alone = True
    tokenizer = model.tokenizer
    trie = _trie(config)
    scheduler = Scheduler(config, states, tokenizer.eog_ids, trie=trie)
    n_logits = model.module(mx.array([[0]])).shape[-1]  # a padded head is wider than the vocabulary
    sampler = Sampler(n_logits, tokenizer.eog_ids, tokenizer)
    mover = Mover(states, trie)
    runner = Runner(model.module, states, mover, sampler, alone)
    return scheduler, runner, SlotActions(model, config, states, mover, scheduler.reuse)


def _trie(config: EngineConfig) -> PrefixTrie | None:
    if config.cache_ram == 0:
        return None
    limit = config.cache_ram * 2**20 if config.cache_ram > 0 else None
    return PrefixTrie(limit, config.ctx_checkpoints * config.n_slots)
