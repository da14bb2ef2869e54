"""The budget's order: what MLX keeps, then stored state, and nothing for what cannot be had anyway."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import pytest

from mlxserver.kv.identity import BASE_IDENTITY
from mlxserver.kv.memory import MIB, MemoryBudget, MemoryCosts, OutOfMemory, is_exhausted
from mlxserver.kv.trie import PrefixTrie


@dataclass
class Bytes:
    """A span of one byte a token."""

    n: int

    @property
    def nbytes(self) -> int:
        return self.n

    def split(self, n: int) -> tuple[Bytes, Bytes]:
        return Bytes(n), Bytes(self.n - n)


OTHERS = 50


def made(limit: int | None) -> tuple[MemoryBudget, PrefixTrie]:
    """The trie's bytes are active, and OTHERS."""
    trie = PrefixTrie(None)
    budget = MemoryBudget(limit, lambda: OTHERS + trie.nbytes)
    budget.attach(trie)
    return budget, trie


def insert(trie: PrefixTrie, first: int, n: int = 20) -> int:
    tokens = [first, *range(1000, 999 + n)]
    return trie.insert(BASE_IDENTITY, tokens, lambda n: n, lambda start, end: Bytes(end - start))


def test_the_leaves_used_longest_ago_give_room() -> None:
    budget, trie = made(100)
    assert [insert(trie, first) for first in (1, 2)] == [20, 20]
    assert budget.has_room(10) and trie.n_nodes == 2
    assert budget.has_room(20) and trie.n_nodes == 1
    assert trie.match(BASE_IDENTITY, [2]).n == 1, "the older one has gone"
    assert not budget.has_room(51) and trie.n_nodes == 1, "nothing goes for nothing"
    assert budget.could_have(50) and trie.n_nodes == 1
    with pytest.raises(
        OutOfMemory, match=r"out of memory: a thing needs 0\.0 MiB, 0\.0 of 0\.0 MiB are free"
    ):
        budget.claim(51, "a thing")


def test_what_is_pinned_or_reserved_gives_none() -> None:
    budget, trie = made(100)
    insert(trie, 1)
    node = trie.match(BASE_IDENTITY, [1]).nodes[-1]
    trie.pin(node)
    assert not budget.has_room(31)
    trie.unpin(node)
    assert trie.reserve(25)
    assert budget.has_room(5) and trie.n_nodes == 1
    assert budget.has_room(25) and trie.n_nodes == 0
    assert not budget.has_room(26)
    trie.release(25)
    assert budget.has_room(50)


def test_the_trie_takes_nothing_in_that_does_not_fit() -> None:
    _, trie = made(100)
    assert [insert(trie, first) for first in (1, 2, 3)] == [20, 20, 20]
    assert (trie.n_nodes, trie.nbytes, trie.evictions) == (2, 40, 1)
    assert insert(trie, 4, 60) == 0
    assert trie.nbytes == 40, "nothing goes for what does not fit anyway"
    assert not trie.reserve(60)
    trie.check()


def test_what_is_cut_in_two_is_there_twice_for_a_while() -> None:
    _, trie = made(100)
    insert(trie, 1, 30)
    tokens = [1, *range(1000, 1010), 7, 7, 7]
    take = trie.insert(BASE_IDENTITY, tokens, lambda n: n, lambda start, end: Bytes(end - start))
    assert take == 0 and trie.nbytes == 30
    _, trie = made(114)
    insert(trie, 1, 30)
    assert trie.insert(BASE_IDENTITY, tokens, lambda n: n, lambda start, end: Bytes(end - start)) == 3
    trie.check()


def test_without_a_bound_everything_fits() -> None:
    budget, trie = made(None)
    insert(trie, 1)
    assert budget.has_room(2**60) and budget.lacking(2**60) == 0 and trie.n_nodes == 1


def test_after_a_failed_allocation_all_goes_that_can() -> None:
    budget, trie = made(None)
    insert(trie, 1)
    insert(trie, 2)
    trie.pin(trie.match(BASE_IDENTITY, [2]).nodes[-1])
    budget.drop_all()
    assert trie.n_nodes == 1


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("[metal::malloc] Attempting to allocate 9 bytes"), True),
        (RuntimeError("[malloc_or_wait] Unable to allocate 9 bytes."), True),
        (RuntimeError("Command buffer execution failed: Insufficient Memory (00000008)"), True),
        (MemoryError(), True),
        (RuntimeError("[matmul] Last dimension does not match"), False),
        (OutOfMemory("out of memory"), False),
    ],
)
def test_errors_of_allocation(error: Exception, is_one: bool) -> None:
    assert is_exhausted(error) == is_one


def test_costs() -> None:
    costs = MemoryCosts(token=10, score=2.0, column=3, row=5, kv=7, fixed=100, windows=((4, 8),))
    assert costs.chunk(2, 30) == 2 * 10 + 2 * 30 * 2 + 30 * 3
    assert costs.step(2, 30) == 2 * (10 + 5 + 30 * 5)
    assert [costs.slot(n) for n in (5, 50)] == [120, 132]


def test_the_active_bytes_of_mlx_are_what_counts() -> None:
    held = mx.zeros((MIB // 4,))
    mx.eval(held)
    mx.synchronize()
    budget = MemoryBudget(mx.get_active_memory() + 1000)
    assert budget.has_room(900) and not budget.has_room(MIB)
    del held
    assert budget.has_room(MIB)
