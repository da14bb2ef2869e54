"""Adapters that begin at a place in the prompt (aLoRA): what is before it is the base model's."""

from __future__ import annotations

from mlxserver.engine.plan import Chunk, Join, Save
from mlxserver.kv.identity import BASE_IDENTITY, Adapters
from mlxserver.kv.trie import PrefixTrie
from tests.engine.test_chunk_reuse import Reusing
from tests.engine.test_scheduler import Harness, NoCut

A: Adapters = (("a", 1.0),)
PROMPT = tuple(range(100, 140))


def chunks(h: Harness, task_id: int) -> list[tuple[int, Adapters]]:
    return [
        (chunk.end, chunk.adapters)
        for plan in h.plans
        for chunk in plan.chunks
        if isinstance(chunk, Chunk) and chunk.task_id == task_id
    ]


def joins(h: Harness, task_id: int) -> list[Adapters]:
    return [
        j.adapters for plan in h.plans for j in plan.joins if isinstance(j, Join) and j.task_id == task_id
    ]


def test_a_chunk_ends_where_the_adapter_begins() -> None:
    h = Harness()
    h.submit(0, tokens=PROMPT, n_predict=1, invoked=A, invoked_at=10)
    h.run()
    assert chunks(h, 0) == [(10, ()), (39, A)]
    assert joins(h, 0) == [A]


def test_an_adapter_that_begins_with_the_prompt() -> None:
    h = Harness()
    h.submit(0, tokens=PROMPT, n_predict=1, invoked=A, invoked_at=0)
    h.run()
    assert {adapters for _, adapters in chunks(h, 0)} == {A}
    assert h.scheduler.slots[1].tokens == []


def test_what_is_before_the_invocation_is_shared_with_the_base_model() -> None:
    h = Reusing(n_slots=2, trie=PrefixTrie(None))
    assert h.ask(0, PROMPT, id_slot=0) == 0
    assert h.ask(1, PROMPT, id_slot=1, invoked=A, invoked_at=30) == 30
    assert h.scheduler.slots[1].tokens == list(PROMPT[:30])
    assert h.scheduler.slots[1].identity == BASE_IDENTITY
    assert h.ask(2, PROMPT, id_slot=1) == 39, "the base model goes on from the other slot's exact state"


def test_what_the_adapter_evaluated_is_nobodys() -> None:
    trie = PrefixTrie(None)
    h = Reusing(n_slots=1, trie=trie)
    h.ask(0, PROMPT, invoked=A, invoked_at=12)
    assert h.ask(1, PROMPT) == 12
    h.ask(2, PROMPT, invoked=A, invoked_at=20)
    assert h.ask(3, PROMPT, invoked=A, invoked_at=20) == 20
    h.ask(4, range(5))
    stored = {tuple(m.tokens) for plan in h.plans for m in plan.moves if isinstance(m, Save)}
    assert {tokens for tokens in stored if tokens[0] == 100} <= {PROMPT[:12], PROMPT, PROMPT[:20]}
    assert all(m.identity == BASE_IDENTITY for plan in h.plans for m in plan.moves if isinstance(m, Save))


def test_chunks_from_elsewhere_end_at_the_invocation() -> None:
    h = Reusing(n_slots=1, trie=PrefixTrie(None))
    h.ask(0, PROMPT)
    edited = (*PROMPT[:10], *PROMPT[14:])
    assert h.ask(1, edited, n_cache_reuse=4, invoked=A, invoked_at=20) == 20
    h.ask(2, PROMPT)
    assert h.ask(3, edited, n_cache_reuse=4) == 35


def test_a_running_invocation_gives_nothing_behind_it_away() -> None:
    h = Reusing(n_slots=2, trie=PrefixTrie(None))
    h.submit(0, tokens=PROMPT, n_predict=50, id_slot=0, invoked=A, invoked_at=10)
    for _ in range(4):
        h.step()
    h.submit(1, tokens=(*PROMPT[:5], *PROMPT[8:]), n_predict=1, id_slot=1, n_cache_reuse=2)
    h.step()
    h.step()
    assert h.scheduler.slots[1].n_past <= 7
    h.run()


def test_a_state_that_cannot_be_cut_is_given_up() -> None:
    h = Harness(states=NoCut())
    h.submit(0, tokens=PROMPT, n_predict=1, invoked=A, invoked_at=10)
    h.run()
    assert h.scheduler.slots[1].tokens == []


def test_a_cancelled_prompt_keeps_what_is_exact() -> None:
    h = Harness()
    h.submit(0, tokens=PROMPT, n_predict=1, invoked=A, invoked_at=10)
    h.step()
    h.scheduler.cancel(0)
    assert h.scheduler.slots[1].tokens == list(PROMPT[:10])
