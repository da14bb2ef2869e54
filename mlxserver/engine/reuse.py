"""What of a prompt is already evaluated somewhere, and how it comes into the slot that the prompt got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mlxserver.engine.chunk_reuse import ChunkReuse, Extension
from mlxserver.engine.plan import Copy, Cut, Load, Move, Save
from mlxserver.engine.slot import Slot, SlotState
from mlxserver.engine.task import CacheStats, Task
from mlxserver.kv.prefix import common_prefix
from mlxserver.kv.trie import Node, PrefixTrie

WORTH_WAITING = 16
"""Tokens that another slot is about to evaluate and that a prompt rather waits for than evaluates again."""

CHECKED_NODES = 5000
"""A larger trie is not walked through each time the engine comes to rest."""


class States(Protocol):
    """What may be asked of the slots' state."""

    @property
    def is_plain(self) -> bool: ...

    @property
    def cannot_shift(self) -> str:
        """Why state cannot be moved to other positions; empty where it can."""
        ...

    def can_truncate(self, slot: int, n: int) -> bool: ...

    def could_hold(self, wanted: dict[int, int]) -> bool:
        """Whether there is memory for slots with so many tokens, if stored state gives room."""
        ...

    def is_far_from(self, slot: int, n: int) -> bool:
        """Whether making room for so many tokens of a slot at once would be felt."""
        ...


@dataclass(frozen=True, slots=True)
class Taken:
    """The first ``n`` tokens of a prompt come into its slot by ``moves``; ``exact_until`` as of the slot."""

    n: int
    exact_until: int | None
    moves: list[Move]
    stored: range = range(0)
    """Those of them that come from the trie at their own positions."""


@dataclass(frozen=True, slots=True)
class Found:
    """The first ``n`` tokens of a prompt, and where they are: the slot itself, another slot or the trie."""

    n: int = 0
    source: Slot | None = None
    node: Node | None = None


class Reuse:
    """``trie`` is None with ``--cache-ram 0``: slots then share nothing and only continue what they hold."""

    def __init__(self, states: States, slots: Sequence[Slot], trie: PrefixTrie | None) -> None:
        self._states = states
        self._slots = slots
        self._trie = trie
        self._chunks = ChunkReuse(slots, trie)
        self._prompts = 0
        self._hits = 0

    def take_over(self, slot: Slot, task: Task) -> Taken:
        """What is evaluated of the prompt, and how it comes into the slot."""
        own = self._own(slot, task) if task.cache_prompt else 0
        best = Found(own)
        if self._trie is not None and task.cache_prompt:
            best = max(best, self._in_slots(slot, task), self._in_trie(task), key=lambda found: found.n)
        chunks = task.cache_prompt and task.n_cache_reuse > 0
        further = self._chunks.extend(slot, task, best.n) if chunks else Extension()
        n = max(best.n, further.n)
        moves: list[Move] = []
        if own < len(slot.tokens) and not further.continues(slot):
            moves += self.keep(slot)
        start = min(own, best.n) if self._states.is_plain else 0
        if not further.runs:
            moves.append(Cut(slot.id, slot.task_id, start if best.source or best.node else best.n))
        moves += self._bring(slot, best, start)
        if further.runs:
            moves += [*further.moves(slot, self._trie), Cut(slot.id, slot.task_id, n)]
        self._prompts += 1
        self._hits += n > 0
        exact_until = best.n if further.runs else None
        if task.invoked:
            exact_until = task.invoked_at if exact_until is None else min(exact_until, task.invoked_at)
        stored = range(start, best.n) if best.node else range(0)
        return Taken(n, exact_until, moves, stored)

    def in_memory(self, task: Task) -> int:
        """Tokens of a prompt that slots or the trie give it now, whichever slot it gets."""
        slots = [slot for slot in self._slots if self._states.is_plain or slot.is_idle]
        stored = self._in_trie(task).n if self._trie is not None else 0
        return max([stored, *(self._own(slot, task) for slot in slots)])

    def keep(self, slot: Slot) -> list[Move]:
        """Store what a slot holds, before it is lost."""
        if self._trie is None or not slot.tokens:
            return []
        tokens, of = tuple(slot.tokens), (slot.id, slot.task_id)
        exact = tokens[: slot.n_exact]
        moves: list[Move] = [Save(*of, slot.identity, exact)] if exact else []
        if len(exact) < len(tokens) and not slot.is_invoked:
            moves.append(Save(*of, replace(slot.identity, is_shifted=True), tokens))
        return moves

    def stats(self) -> CacheStats:
        trie = self._trie
        if trie is None:
            return CacheStats(hits=self._hits, prompts=self._prompts)
        limit = -1 if trie.limit is None else trie.limit
        held = (trie.nbytes, limit, trie.n_nodes, trie.n_snapshots, trie.evictions)
        return CacheStats(*held, hits=self._hits, prompts=self._prompts)

    def check(self, may_pin: bool) -> None:
        """``may_pin``: a task that waits keeps nodes pinned."""
        if self._trie is not None and self._trie.n_nodes <= CHECKED_NODES:
            self._trie.check()
            is_pinned = any(node.pins for node in self._trie.nodes())
            assert may_pin or not is_pinned, "a node is pinned although nothing runs"

    def worth_waiting_for(self, slot: Slot, task: Task) -> bool:
        """Whether another slot is evaluating tokens that this prompt shares."""
        if self._trie is None or not task.cache_prompt or not self._states.is_plain:
            return False
        has = max(self._own(slot, task), self._in_trie(task).n)
        return any(
            other.state is SlotState.PROMPT
            and self._shared(other, task) > max(has, other.n_prompt_done) + WORTH_WAITING
            for other in self._slots
            if other is not slot
        )

    def _own(self, slot: Slot, task: Task) -> int:
        if slot.identity != task.identity:
            return 0
        n = min(common_prefix(slot.tokens, task.tokens), task.n_reusable, slot.n_exact)
        return n if self._states.can_truncate(slot.id, n) else 0

    def _in_slots(self, slot: Slot, task: Task) -> Found:
        """State that cannot be cut is copied only where the prompt runs through all of it."""
        best = Found()
        for other in self._slots:
            if other is slot or other.identity != task.identity:
                continue
            n = min(common_prefix(other.tokens, task.tokens), task.n_reusable, other.n_exact)
            if not self._states.is_plain and (n < len(other.tokens) or not other.is_idle):
                continue
            if n > best.n:
                best = Found(n, source=other)
        return best

    def _in_trie(self, task: Task) -> Found:
        assert self._trie is not None
        match = self._trie.match(task.identity, task.tokens)
        most = min(match.n, task.n_reusable)
        if self._states.is_plain:
            return Found(most, node=match.nodes[-1]) if most > 0 else Found()
        node = match.snapshot(most)
        return Found(node.end, node=node) if node else Found()

    def _bring(self, slot: Slot, found: Found, start: int) -> list[Move]:
        of = slot.id, slot.task_id
        if found.source is not None:
            return [Copy(*of, found.source.id, start, found.n, start)]
        if found.node is not None and self._trie is not None:
            self._trie.pin(found.node)
            return [Load(*of, found.node, start, found.n, start)]
        return []

    def _shared(self, other: Slot, task: Task) -> int:
        """Tokens of the prompt that ``other`` holds or will hold before its first token."""
        if other.task is None or other.identity != task.identity:
            return 0
        most = min(other.n_prompt - 1, task.n_reusable)
        if other.exact_until is not None:
            most = min(most, other.exact_until)
        return min(common_prefix(other.task.tokens, task.tokens), most)
