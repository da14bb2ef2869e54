"""Decides what every step does: which slots decode, which prompts go on, who waits. No arrays, no text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from mlxserver.engine.cells import Cells
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.context_shift import NO_SHIFT, ContextShifts
from mlxserver.engine.embeddings import Embeddings, too_long
from mlxserver.engine.pace import Pace
from mlxserver.engine.placement import Placement
from mlxserver.engine.plan import (
    Compact,
    Copy,
    Cut,
    Decode,
    Embedded,
    Join,
    Move,
    Plan,
    Result,
    SampledToken,
)
from mlxserver.engine.prompts import Prompts, expected_tokens
from mlxserver.engine.reader import Arrived
from mlxserver.engine.restore import Tier
from mlxserver.engine.restores import Restores
from mlxserver.engine.reuse import Reuse, States
from mlxserver.engine.slot import Slot, SlotState
from mlxserver.engine.tally import Tally
from mlxserver.engine.task import (
    Counters,
    Event,
    Failed,
    Finished,
    PromptProgress,
    Snapshot,
    Started,
    StopReason,
    Task,
    Token,
    Vectors,
)
from mlxserver.kv.trie import PrefixTrie


class Scheduler:
    """Plans may run one step ahead of the results: tokens of a task that has ended meanwhile are dropped."""

    def __init__(
        self,
        config: EngineConfig,
        states: States,
        eog_ids: frozenset[int],
        clock: Callable[[], float] = time.perf_counter,
        trie: PrefixTrie | None = None,
        adds_bos: bool = False,
        tier: Tier | None = None,
        on_release: Callable[[Slot], None] = lambda slot: None,
        shares_passes: bool = False,
    ) -> None:
        """``on_release`` is told of each slot whose task ended, when it holds what it is to keep.
        ``shares_passes``: chunks of several prompts may be evaluated in one pass."""
        self._config = config
        self._states = states
        self._eog_ids = eog_ids
        self._clock = clock
        self._on_release = on_release
        self._events: list[Event] = []
        self.slots = [Slot(i, config.n_ctx_slot, config.context_shift) for i in range(config.n_slots)]
        self.reuse = Reuse(states, self.slots, trie)
        self.pace = Pace()
        self.restores = Restores(tier, self.reuse.in_memory, lambda: self.pace.seconds_per_token, clock)
        self._placement = Placement(config, self.slots, self.restores)
        self._tally = Tally()
        self._context_shifts = ContextShifts(config, self.slots, adds_bos)
        self._cells = Cells(config, self.slots, self.reuse)
        self._prompts = Prompts(config, states, self.slots, self.reuse, self.pace, shares_passes)
        self._embeddings = Embeddings(config, self.slots, self.pace)

    @property
    def counters(self) -> Counters:
        return self._tally.counters

    # ------------------------------------------------------------ requests

    def submit(self, task: Task) -> None:
        """Give the task a slot, or let it wait for one."""
        if refused := self._placement.submit(task):
            family = (task.id, *(task_id for task_id, _ in task.children))
            self._events += [replace(refused, task_id=task_id) for task_id in family]

    def cancel(self, task_id: int) -> None:
        """Forget a task in whatever phase it is. Its slot keeps what was evaluated."""
        self._placement.forget(task_id)
        slot = self._slot_of(task_id)
        if slot:
            self._release(slot)
        else:
            self._placement.place_waiting()

    def stop(self, task_id: int, n_generated: int) -> None:
        """The text of a task ended with its ``n_generated``-th token; later ones never were."""
        slot = self._slot_of(task_id)
        if slot and slot.state is SlotState.GENERATING:
            self._finish(slot, "stop", n_generated)

    def arrived(self, message: Arrived) -> None:
        """Something was read from disk for a task that waits."""
        self.restores.arrived(message)
        self._placement.place_waiting()

    def reserve(self, slot_id: int) -> Slot:
        """Keep a slot, once idle, for an action on its state."""
        slot = self.slots[slot_id % len(self.slots)]
        slot.is_reserved = True
        return slot

    def give_back(self, slot: Slot) -> None:
        """The action is done; tasks may have the slot again."""
        slot.is_reserved = False
        self._placement.place_waiting(slot)

    def running(self) -> list[int]:
        """The ids of the tasks in slots."""
        return [slot.task_id for slot in self.slots if not slot.is_idle]

    @property
    def wake_at(self) -> float | None:
        """When to plan again although no message came, by the clock; None for never."""
        return self.restores.wake_at

    def adapters_in_use(self) -> set[str]:
        """Digests of the adapters of all tasks that run or wait."""
        return self._placement.adapters_in_use()

    def inherit(self, other: Scheduler) -> None:
        """Go on where another one, whose running tasks are lost, cannot."""
        self._tally = other._tally
        self.restores.replace(other.restores)
        for task in other._placement.waiting:
            self.submit(task)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def snapshot(self, with_tokens: bool, n_arriving: int = 0) -> Snapshot:
        """``n_arriving`` tasks are on their way; they wait too where no slot is free."""
        n_free = sum(slot.is_free for slot in self.slots)
        slots = tuple(slot.view(with_tokens) for slot in self.slots)
        n_deferred = len(self._placement.waiting) + max(0, n_arriving - n_free)
        cache, disk = self.reuse.stats(), self.restores.stats()
        return Snapshot(slots, self._tally.counters, n_deferred, cache, disk, self._tally.adapters)

    def check(self) -> None:
        """While nothing runs: raise AssertionError where the books of slots and trie do not add up."""
        self.reuse.check(may_pin=self.restores.has_pins)
        self.restores.check([task.id for task in self._placement.waiting])
        awaited = all(self.restores.is_awaited(task.id) for task in self._placement.waiting)
        assert awaited, "a task waits although every slot is idle"

    # ---------------------------------------------------------------- plan

    def plan(self) -> Plan:
        if self.restores.wake():
            self._placement.place_waiting()
        moves = self._starts()
        moves += self._shifts()
        moves += self._make_room()
        growth = self._prompts.room()
        moves += growth
        passes = () if growth else self._prompts.passes()
        shares = self._prompts.checkpoints([chunk for chunks in passes for chunk in chunks])
        copies, joins = self._joins()
        decodes = tuple(
            Decode(slot.id, slot.task_id)
            for slot in self.slots
            if slot.state is SlotState.GENERATING and slot.n_launched < slot.limit
        )
        for decode in decodes:
            self.slots[decode.slot].n_launched += 1
        is_joint = not shares and not copies and self._prompts.are_joint(passes, joins, decodes)
        moved = (*shares, *copies)
        return Plan(tuple(moves), passes, moved, joins, decodes, self._embeddings.batch(), is_joint)

    def commit(self, plan: Plan, result: Result) -> None:
        """Take in what a plan gave: counters, events, ends."""
        now = self._clock()
        self._tally.ran(plan, self.slots)
        for failed in result.failures:
            self._fail(failed)
        for chunk in plan.chunks:
            slot = self._slot_of(chunk.task_id)
            if slot and chunk.end < slot.n_prompt - 1:
                self._progress(slot, chunk.end, now)
        for sampled in result.tokens:
            slot = self.slots[sampled.slot]
            if slot.task_id == sampled.task_id and slot.state is SlotState.GENERATING:
                self._take(slot, sampled, now)
        for embedded in result.embedded:
            self._take_embedded(embedded, now)

    # -------------------------------------------------------------- starts

    def _starts(self) -> list[Move]:
        """Begin the prompts of launched tasks, in the order in which they came."""
        moves: list[Move] = []
        waiting: set[int] = set()
        while started := [s for s in self.slots if s.state is SlotState.STARTED and s.task_id not in waiting]:
            slot = min(started, key=lambda slot: slot.task_id)
            assert slot.task is not None
            slot.t_start = slot.t_first = slot.t_last = self._clock()
            if self._ends_at_once(slot, slot.task):
                continue
            if slot.task.is_embedding:
                self._start_embedding(slot)
            elif self.reuse.worth_waiting_for(slot, slot.task) or not self._cells.has_room_for(slot):
                waiting.add(slot.task_id)
            else:
                moves += self._start(slot, slot.task)
        if self._placement.has_placed():
            moves += self._cells.tidy()
        return moves

    def _ends_at_once(self, slot: Slot, task: Task) -> bool:
        """A prompt without tokens, or with too many, needs nothing that others hold."""
        if task.is_embedding or not self._config.has_logits:
            if refused := self._embeddings.refusal(task, slot.n_ctx):
                self._fail(refused)
        elif not task.tokens:
            for each in (*slot.children, slot):
                self._events.append(Started(each.task_id, each.id, 0, 0, slot.t_start))
                self._finish(each, "none")
        elif len(task.tokens) >= slot.n_ctx:
            self._fail(too_long(task, slot.n_ctx))
        elif task.n_cache_reuse > 0 and (reason := self._states.cannot_shift):
            message = f"n_cache_reuse cannot be used with this model: {reason}"
            self._fail(Failed(task.id, "invalid_request_error", message))
        return slot.is_idle or slot.task is not task

    def _start(self, slot: Slot, task: Task) -> list[Move]:
        """Take over what is evaluated of the prompt already."""
        room = self._memory_for(slot)
        taken = self.reuse.take_over(slot, task)
        slot.n_past, slot.exact_until = taken.n, taken.exact_until
        slot.tokens, slot.identity = list(task.tokens[: slot.n_past]), task.identity
        slot.state = SlotState.PROMPT
        n_disk = self.restores.started(task.id, taken.stored)
        for each in (slot, *slot.children):
            each.n_past, each.n_prompt_done, each.t_start = slot.n_past, slot.n_past, slot.t_start
            started = Started(each.task_id, each.id, slot.n_prompt, slot.n_past, slot.t_start, n_disk)
            self._events.append(started)
            self._progress(each, slot.n_past, slot.t_start)
        self._tally.took_over(slot.n_past)
        return [*room, *taken.moves]

    def _memory_for(self, slot: Slot) -> list[Move]:
        """Where memory is short, what idle slots hold gives room."""
        begun = [each for each in self.slots if each.state is SlotState.PROMPT]
        wanted = {each.id: expected_tokens(each) for each in (*begun, slot, *slot.children)}
        if self._states.could_hold(wanted):
            return []
        idle = [each for each in self.slots if each.is_free]
        return [*self._cells.empty(idle), Compact(slot.id, slot.task_id)]

    def _start_embedding(self, slot: Slot) -> None:
        slot.state = SlotState.EMBEDDING
        self._events.append(Started(slot.task_id, slot.id, slot.n_prompt, 0, slot.t_start))

    # ------------------------------------------------------- parts of plan

    def _shifts(self) -> list[Move]:
        moves, failing = self._context_shifts.plan()
        for slot in failing:  # what they hold is good
            self._events.append(Failed(slot.task_id, "server_error", NO_SHIFT))
            self._release(slot)
        return moves

    def _make_room(self) -> list[Move]:
        moves, failing = self._cells.make_room()
        for slot in failing:
            self._fail(Failed(slot.task_id, "server_error", "Context size has been exceeded."))
        return moves

    def _joins(self) -> tuple[list[Move], tuple[Join, ...]]:
        copies: list[Move] = []
        joins = []
        for slot in self.slots:
            if slot.state is not SlotState.PROMPT or slot.n_prompt_done < slot.n_prompt - 1:
                continue
            if self._held_back():
                continue
            children = [child for child in slot.children if child.parent is slot]
            for child in children:
                of = child.id, child.task_id
                copy = Copy(*of, slot.id, 0, slot.n_prompt_done, 0)
                copies += [*self.reuse.keep(child), Cut(*of, 0), copy]
            for each in (slot, *children):
                assert each.task is not None
                each.state, each.parent = SlotState.GENERATING, None
                each.n_prompt_done, each.tokens = each.n_prompt, list(each.task.tokens)
                each.identity, each.exact_until = slot.identity, slot.exact_until
                task = each.task
                joins.append(Join(each.id, each.task_id, task.sampling, task.tokens, task.adapters))
            slot.children = []
        return copies, tuple(joins)

    def _held_back(self) -> bool:
        """Without continuous batching a prompt does not join streams that have already begun."""
        begun = any(slot.state is SlotState.GENERATING and slot.n_launched for slot in self.slots)
        return begun and not self._config.cont_batching

    # ------------------------------------------------------ parts of commit

    def _take(self, slot: Slot, sampled: SampledToken, now: float) -> None:
        if not slot.generated:
            self._first_token(slot, now)
        else:
            slot.tokens.append(slot.generated[-1])
        slot.generated.append(sampled.token)
        slot.t_last = now
        self._events.append(Token(slot.task_id, sampled.token, now, sampled.probs))
        if sampled.token in self._eog_ids:
            self._finish(slot, "eos")
        elif len(slot.generated) >= slot.limit:
            self._finish(slot, "limit")

    def _first_token(self, slot: Slot, now: float) -> None:
        slot.t_first = now
        self._tally.prompt_took(now - slot.t_start)
        if slot.task and slot.task.return_progress:
            self._progress(slot, slot.n_prompt, now)

    def _take_embedded(self, embedded: Embedded, now: float) -> None:
        slot = self._slot_of(embedded.task_id)
        if slot:
            slot.t_first = slot.t_last = now
            self._tally.prompt_took(now - slot.t_start)
            self._events.append(Vectors(slot.task_id, embedded.vectors))
            self._finish(slot, "none")

    def _progress(self, slot: Slot, processed: int, now: float) -> None:
        if slot.task and slot.task.return_progress:
            self._events.append(PromptProgress(slot.task_id, slot.n_prompt, slot.n_past, processed, now))

    # ---------------------------------------------------------------- ends

    def _finish(self, slot: Slot, reason: StopReason, n_generated: int | None = None) -> None:
        n = len(slot.generated) if n_generated is None else n_generated
        n_discarded = slot.n_discarded(n)
        full = not slot.shifts_context and n >= slot.n_ctx - slot.n_prompt
        truncated = n > 0 and (full or n_discarded > 0)
        kept = slot.n_prompt + n - 1 - n_discarded if n else len(slot.tokens)
        shifted_after = slot.shifts[0].n_launched if slot.shifts else None
        self._events.append(Finished(slot.task_id, reason, truncated, kept, slot.t_last, shifted_after))
        self._release(slot, n)

    def _fail(self, failed: Failed) -> None:
        slot = self._slot_of(failed.task_id)
        if slot is None:
            self._distrust(failed.task_id)
            return
        self._events.append(failed)
        for child in [child for child in slot.children if child.parent is slot]:
            self._events.append(replace(failed, task_id=child.task_id))
        self._release(slot, forget=slot.state is not SlotState.STARTED)

    def _distrust(self, task_id: int) -> None:
        """A task failed after it had ended: what an idle slot was to keep of it is lost."""
        for slot in self.slots:
            if slot.is_idle and slot.task_id == task_id:
                slot.tokens = []

    def _release(self, slot: Slot, n_generated: int | None = None, forget: bool = False) -> None:
        """Make the slot idle; ``forget`` what it holds where that is not to be trusted."""
        for child in [child for child in slot.children if child.parent is slot]:
            self._release(child)
        self.restores.leave(slot.task_id)
        n = len(slot.generated) if n_generated is None else n_generated
        self._tally.ended(slot, n)
        slot.tokens = [] if forget else self._kept(slot, n)
        del slot.generated[n:]
        slot.state, slot.parent, slot.children = SlotState.IDLE, None, []
        slot.t_last_used = self._clock()
        self._on_release(slot)
        self._placement.place_waiting(slot)

    def _kept(self, slot: Slot, n_generated: int) -> list[int]:
        """The tokens that the slot holds from now on; state that cannot be cut keeps the steps run ahead."""
        tokens = slot.tokens
        if slot.state is SlotState.GENERATING:
            known = [*tokens, *slot.generated[-1:]]
            kept = slot.n_kept(n_generated)
            n = kept if self._states.can_truncate(slot.id, kept) else slot.n_cells
            tokens = known[:n] if n <= len(known) else []
        if slot.is_invoked and len(tokens) > slot.n_exact:
            tokens = tokens[: slot.n_exact] if self._states.can_truncate(slot.id, slot.n_exact) else []
        return tokens

    def _slot_of(self, task_id: int) -> Slot | None:
        return next((s for s in self.slots if s.task_id == task_id and not s.is_idle), None)
