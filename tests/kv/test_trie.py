"""The prefix trie against a naive model that stores whole prompts, over random schedules."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.trie import Node, PrefixTrie, path_tokens

BYTES = 10
"""Of one token's state."""
OTHER = CacheIdentity(adapters=(("a", 0.5),))


@dataclass
class Text:
    """A span that remembers which tokens it is the state of, with everything before them."""

    history: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return BYTES * (len(self.history) - self.start)

    def split(self, n: int) -> tuple[Text, Text]:
        cut = self.start + n
        return Text(self.history[:cut], self.start), Text(self.history, cut)


@dataclass
class Frozen:
    history: tuple[int, ...]
    nbytes: int = 7


def put(
    trie: PrefixTrie, tokens: tuple[int, ...], identity: CacheIdentity = BASE_IDENTITY, snap: bool = False
) -> int:
    return trie.insert(
        identity,
        tokens,
        lambda n: BYTES * n,
        lambda start, end: Text(tokens[:end], start),
        Frozen(tokens) if snap else None,
    )


def held(trie: PrefixTrie) -> set[tuple[int, ...]]:
    """Every stored prefix, by what its span says."""
    return {node.span.history for node in trie.nodes()}  # type: ignore[attr-defined]


def test_branches_hold_their_common_prefix_once() -> None:
    trie = PrefixTrie(None)
    prefix = tuple(range(1000))
    for branch in range(32):
        put(trie, (*prefix, 5000 + branch, 1, 2))
    assert trie.nbytes == BYTES * (1000 + 32 * 3)
    trie.check()


def test_match_tells_how_far_and_through_which_nodes() -> None:
    trie = PrefixTrie(None)
    put(trie, (1, 2, 3, 4))
    put(trie, (1, 2, 9))
    match = trie.match(BASE_IDENTITY, (1, 2, 9, 9))
    assert (match.n, [list(node.tokens) for node in match.nodes]) == (3, [[1, 2], [9]])
    assert trie.match(BASE_IDENTITY, (1, 2, 3)).n == 3
    assert trie.match(BASE_IDENTITY, (7,)).n == 0


def test_nothing_crosses_identities() -> None:
    trie = PrefixTrie(None)
    put(trie, (1, 2, 3))
    for other in (OTHER, CacheIdentity(tenant="a"), CacheIdentity(adapters=(("a", 0.25),))):
        assert trie.match(other, (1, 2, 3)).n == 0
    put(trie, (1, 2, 3), OTHER)
    assert trie.nbytes == 6 * BYTES


def test_snapshots_sit_at_exact_positions_and_survive_splits() -> None:
    trie = PrefixTrie(None)
    put(trie, (1, 2, 3, 4, 5), snap=True)
    put(trie, (1, 2), snap=True)
    put(trie, (1, 2, 3, 8))
    match = trie.match(BASE_IDENTITY, (1, 2, 3, 4, 5, 6))
    assert match.snapshot(6).snapshot.history == (1, 2, 3, 4, 5)  # type: ignore[union-attr]
    assert match.snapshot(4).snapshot.history == (1, 2)  # type: ignore[union-attr]
    assert match.snapshot(1) is None
    assert trie.n_snapshots == 2
    trie.check()


def test_the_snapshot_used_longest_ago_goes_first() -> None:
    trie = PrefixTrie(None, max_snapshots=2)
    for first in (1, 2, 3):
        put(trie, (first, 9), snap=True)
    snapshots = {node.span.history for node in trie.nodes() if node.snapshot}  # type: ignore[attr-defined]
    assert snapshots == {(2, 9), (3, 9)}
    assert held(trie) == {(1, 9), (2, 9), (3, 9)}
    trie.check()


def test_least_recently_used_leaf_goes_first() -> None:
    trie = PrefixTrie(6 * BYTES)
    put(trie, (1, 2))
    put(trie, (3, 4))
    put(trie, (5, 6))
    trie.touch(trie.match(BASE_IDENTITY, (1, 2)).nodes[-1])
    put(trie, (7, 8))
    assert held(trie) == {(1, 2), (5, 6), (7, 8)}
    assert trie.evictions == 1


def test_inner_nodes_go_after_their_leaves() -> None:
    trie = PrefixTrie(4 * BYTES)
    put(trie, (1, 2, 3))
    put(trie, (1, 2, 4))
    put(trie, (8, 9))
    assert held(trie) == {(1, 2), (8, 9)}


def test_state_over_the_limit_is_skipped_and_flushes_nothing() -> None:
    trie = PrefixTrie(4 * BYTES)
    put(trie, (1, 2))
    assert put(trie, (5, 6, 7, 8, 9)) == 0
    assert held(trie) == {(1, 2)}


def test_pinned_nodes_stay() -> None:
    trie = PrefixTrie(3 * BYTES)
    put(trie, (1, 2, 3))
    node = trie.match(BASE_IDENTITY, (1, 2, 3)).nodes[-1]
    trie.pin(node)
    assert put(trie, (7,)) == 0
    assert held(trie) == {(1, 2, 3)}
    put_split = trie.match(BASE_IDENTITY, (1, 2))
    assert put_split.n == 2
    trie.unpin(node)
    assert put(trie, (7,)) == 1
    trie.check()


def test_room_for_what_is_on_its_way() -> None:
    trie = PrefixTrie(4 * BYTES)
    put(trie, (1, 2))
    put(trie, (3,))
    assert trie.reserve(2 * BYTES)
    assert held(trie) == {(3,)}
    put(trie, (4, 5))
    assert held(trie) == {(4, 5)}
    trie.release(2 * BYTES)
    assert put(trie, (6, 7)) == 2
    assert held(trie) == {(4, 5), (6, 7)}
    trie.check()


def test_nothing_is_dropped_for_what_finds_no_room() -> None:
    trie = PrefixTrie(4 * BYTES)
    put(trie, (1, 2))
    put(trie, (3,))
    node = trie.match(BASE_IDENTITY, (1, 2)).nodes[-1]
    trie.pin(node)
    assert not trie.reserve(3 * BYTES)
    assert put(trie, (4, 5, 6)) == 0
    assert held(trie) == {(1, 2), (3,)}
    trie.unpin(node)
    assert trie.reserve(3 * BYTES)
    trie.check()


def test_pins_outlive_a_split() -> None:
    trie = PrefixTrie(None)
    put(trie, (1, 2, 3, 4))
    node = trie.match(BASE_IDENTITY, (1, 2, 3, 4)).nodes[-1]
    trie.pin(node)
    put(trie, (1, 2, 9))
    trie.clear()
    assert held(trie) == {(1, 2), (1, 2, 3, 4)}
    trie.unpin(node)
    trie.clear()
    assert held(trie) == set()
    assert trie.nbytes == 0
    trie.check()


def test_an_emptied_identity_leaves_no_root() -> None:
    trie = PrefixTrie(None)
    for tenant in range(50):
        put(trie, (1, 2), CacheIdentity(tenant=str(tenant)))
    trie.clear()
    assert trie._roots == {}


tokens = st.lists(st.integers(1, 3), min_size=1, max_size=8).map(tuple)
steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "snapshot", "match", "pin", "unpin", "touch", "reserve", "release"]),
        tokens,
        st.sampled_from([BASE_IDENTITY, OTHER]),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(steps, st.sampled_from([None, 4 * BYTES, 12 * BYTES, 25 * BYTES]))
def test_random_schedules_keep_every_promise(schedule: list, limit: int | None) -> None:
    trie = PrefixTrie(limit)
    stored: dict[CacheIdentity, set[tuple[int, ...]]] = {BASE_IDENTITY: set(), OTHER: set()}
    pinned: list[Node] = []
    reserved: list[int] = []
    for action, prompt, identity in schedule:
        match = trie.match(identity, prompt)
        # what matches is the state of exactly these tokens, of this identity, and was put there
        if match.nodes:
            last = match.nodes[-1]
            assert last.span.history[: match.n] == prompt[: match.n]  # type: ignore[attr-defined]
            assert any(whole[: match.n] == prompt[: match.n] for whole in stored[identity])
        if limit is None:
            best = max((_agree(prompt, whole) for whole in stored[identity]), default=0)
            assert match.n == best
        if action in ("insert", "snapshot"):
            put(trie, prompt, identity, snap=action == "snapshot")
            stored[identity].add(prompt)
        elif action == "touch" and match.nodes:
            trie.touch(match.nodes[-1])
        elif action == "pin" and match.nodes:
            trie.pin(match.nodes[-1])
            pinned.append(match.nodes[-1])
        elif action == "unpin" and pinned:
            trie.unpin(pinned.pop())
        elif action == "reserve" and trie.reserve(BYTES * len(prompt)):
            reserved.append(BYTES * len(prompt))
        elif action == "release" and reserved:
            trie.release(reserved.pop())
        trie.check()
        reachable = set(map(id, trie.nodes()))
        assert all(id(node) in reachable for node in pinned)
    for node in pinned:
        trie.unpin(node)
    trie.clear()
    assert trie.nbytes == trie.n_nodes == 0


def _agree(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("n", [0, 1, 7, 8])
def test_common_prefix_of_equal_and_nested_sequences(n: int) -> None:
    from mlxserver.kv.prefix import common_prefix

    assert common_prefix(list(range(n)), list(range(8))) == n
    assert common_prefix([*range(n), 99, 5], [*range(n), 98, 5]) == n


def test_the_latest_leaves_below_a_match() -> None:
    trie = PrefixTrie(None)
    for number in range(20):
        put(trie, (1, 2, number, 5))
    put(trie, (9, 9))
    again = trie.match(BASE_IDENTITY, (1, 2, 3, 5))
    trie.touch(again.nodes[-1])
    match = trie.match(BASE_IDENTITY, (1, 2, 77))
    paths = [tuple(path_tokens(node)) for node in trie.recent(BASE_IDENTITY, match, 3)]
    assert paths == [(1, 2, 3, 5), (1, 2, 19, 5), (1, 2, 18, 5)]
    everywhere = trie.recent(BASE_IDENTITY, trie.match(BASE_IDENTITY, (4,)), 2)
    assert [tuple(path_tokens(node)) for node in everywhere] == [(1, 2, 3, 5), (9, 9)]
    assert trie.recent(OTHER, match=trie.match(OTHER, (1,)), count=3) == []
