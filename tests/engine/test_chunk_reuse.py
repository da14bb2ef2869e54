"""What of a prompt is taken over from other positions, from where, and for whom."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.engine.plan import Copy, Load, Save
from mlxserver.engine.task import Failed, Started
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.trie import PrefixTrie
from tests.engine.test_scheduler import Harness, NoCut


class Span:
    def __init__(self, n: int) -> None:
        self.nbytes = n

    def split(self, n: int) -> tuple[Span, Span]:
        return Span(n), Span(self.nbytes - n)


class Reusing(Harness):
    """Saves go to the trie at once."""

    def ask(self, task_id: int, tokens: Any, **fields: Any) -> int:
        """How many of the prompt's tokens were taken over."""
        self.submit(task_id, tokens=tuple(tokens), n_predict=1, **fields)
        first = len(self.plans)
        self.run()
        for move in (move for plan in self.plans[first:] for move in plan.moves):
            if isinstance(move, Save) and self.trie is not None:
                self.trie.insert(
                    move.identity, move.tokens, lambda n: n, lambda start, end: Span(end - start)
                )
            if isinstance(move, Load) and self.trie is not None:
                self.trie.unpin(move.node)
        n: int = self.of(task_id, Started)[0].n_past
        return n

    def moves(self, task_id: int) -> list[Any]:
        wanted = (Copy, Load)
        return [
            m for plan in self.plans for m in plan.moves if isinstance(m, wanted) and m.task_id == task_id
        ]

    def __init__(self, trie: PrefixTrie | None = None, **changes: Any) -> None:
        super().__init__(trie=trie, **changes)
        self.trie = trie


OLD = range(1000, 1060)


def without(lo: int, hi: int) -> list[int]:
    return [*OLD[:lo], *OLD[hi:]]


def test_a_removed_middle_from_the_slot_itself() -> None:
    h = Reusing(n_slots=1)
    h.ask(0, OLD)
    assert h.ask(1, [*without(20, 30), 7, 8], n_cache_reuse=8) == 50
    assert h.moves(1) == [Copy(0, 1, 0, 30, 60, 20)]
    slot = h.scheduler.slots[0]
    assert (len(slot.tokens), slot.n_exact) == (52, 20)


def test_runs_shorter_than_asked_for_are_evaluated() -> None:
    for shortest, n in ((30, 50), (31, 20)):
        h = Reusing(n_slots=1)
        h.ask(0, OLD)
        assert h.ask(1, [*without(20, 30), 7, 8], n_cache_reuse=shortest) == n


def test_nothing_moves_unless_the_request_allows_it() -> None:
    h = Reusing(n_slots=1, trie=PrefixTrie(None))
    h.ask(0, OLD)
    assert h.ask(1, without(20, 30)) == 20
    assert h.ask(2, without(10, 30), n_cache_reuse=8, cache_prompt=False) == 0


def test_the_last_token_is_evaluated() -> None:
    h = Reusing(n_slots=1)
    h.ask(0, OLD)
    assert h.ask(1, without(20, 30), n_cache_reuse=8) == 49
    assert h.moves(1) == [Copy(0, 1, 0, 30, 59, 20)]


def test_moved_state_serves_only_those_who_allow_it() -> None:
    h = Reusing(n_slots=1, trie=PrefixTrie(None))
    h.ask(0, OLD)
    edited = [*without(20, 30), 7, 8]
    h.ask(1, edited, n_cache_reuse=8)
    assert h.ask(2, [*edited, 9], n_cache_reuse=8) == 52, "the next turn goes on in the slot"
    assert h.moves(2) == []
    assert h.ask(3, [*edited, 9]) == 20, "exact requests get exact state"
    assert h.scheduler.slots[0].exact_until is None
    assert h.ask(4, [*edited, 11], n_cache_reuse=8) == 52
    assert h.scheduler.slots[0].exact_until is None, "the exact state reaches as far"


def test_what_moved_is_stored_apart() -> None:
    trie = PrefixTrie(None)
    h = Reusing(n_slots=1, trie=trie)
    h.ask(0, OLD)
    edited = [*without(20, 30), 7, 8]
    h.ask(1, edited, n_cache_reuse=8)
    h.ask(2, range(2000, 2010))
    assert trie.match(CacheIdentity(), edited).n == 20
    assert trie.match(CacheIdentity(is_shifted=True), edited).n == 52
    assert h.ask(3, [*edited, 9]) == 20
    trie.check()


def test_originals_are_moved_rather_than_moved_ones() -> None:
    h = Reusing(n_slots=1, trie=PrefixTrie(None))
    h.ask(0, OLD)
    h.ask(1, without(20, 30), n_cache_reuse=8)
    assert h.ask(2, [*without(10, 30), 7], n_cache_reuse=8) == 40
    (move,) = h.moves(2)
    assert isinstance(move, Load) and (move.start, move.end, move.at) == (30, 60, 10)


def test_from_the_trie_and_from_other_slots() -> None:
    h = Reusing(n_slots=1, trie=PrefixTrie(None))
    h.ask(0, OLD)
    h.ask(1, range(2000, 2040))
    assert h.ask(2, [*OLD[30:], 7], n_cache_reuse=8) == 30
    (move,) = h.moves(2)
    assert isinstance(move, Load) and (move.start, move.end, move.at) == (30, 60, 0)
    h = Reusing(n_slots=2, trie=PrefixTrie(None))
    h.ask(0, OLD, id_slot=0)
    assert h.ask(1, [*OLD[30:], 7], n_cache_reuse=8, id_slot=1) == 30
    assert h.moves(1) == [Copy(1, 1, 0, 30, 60, 0)]


def test_another_tenant_gets_nothing() -> None:
    h = Reusing(n_slots=2, trie=PrefixTrie(None))
    h.ask(0, OLD, identity=CacheIdentity(tenant="a"))
    assert h.ask(1, without(20, 30), n_cache_reuse=8, identity=CacheIdentity(tenant="b")) == 0


def test_a_model_that_cannot_shift_refuses_the_request() -> None:
    h = Harness(states=NoCut())
    h.submit(0, tokens=tuple(OLD), n_cache_reuse=8)
    h.run()
    failed = h.of(0, Failed)[0]
    assert failed.type == "invalid_request_error"
    assert failed.message == "n_cache_reuse cannot be used with this model: ArraysCache cannot shift"


@pytest.mark.parametrize("seed", range(3))
def test_the_counts_of_llama_server_or_more(seed: int) -> None:
    """One slot without a trie is the reference's own situation."""
    import random

    from tests.engine.test_chunks import plain_search

    rng = random.Random(seed)
    for _ in range(30):
        h = Reusing(n_slots=1)
        old = [rng.choice([1, 2, 3, 4]) for _ in range(50)]
        new = [t for i, t in enumerate(old) if not 10 <= i < 10 + rng.randrange(9)] + [5] * rng.randrange(3)
        h.ask(0, old)
        start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(new))
        runs = plain_search(old, new, start, 4)
        expected = min(len(new) - 1, start + sum(run.end - run.start for run in runs))
        assert h.ask(1, new, n_cache_reuse=4) == expected
