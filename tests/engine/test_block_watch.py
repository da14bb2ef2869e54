"""The blocks that are told of are those that slots and trie hold, after every step."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from mlxserver.engine.block_watch import BlockWatch
from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain
from mlxserver.kv.disk.books import DiskEvent
from mlxserver.kv.disk.entry import Kind
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.trie import PrefixTrie, path_tokens
from tests.engine.test_chunk_reuse import Reusing, Span

ADAPTED = CacheIdentity(adapters=(("a", 1.0),))


class Follower:
    """What somebody who only hears the changes believes."""

    def __init__(self, watch: BlockWatch) -> None:
        self.watch = watch
        self.held: dict[str, set[bytes]] = {"slot": set(), "ram": set()}

    def hear(self) -> None:
        for change in self.watch.take():
            held = self.held[change.tier]
            if change.kind == "stored":
                assert change.block.hash not in held
                assert change.block.parent in held | {self.watch.root}, "told of before its parent"
                held.add(change.block.hash)
            else:
                held.remove(change.block.hash)


class Watched(Reusing):
    def __init__(self, limit: int | None = None, **changes: Any) -> None:
        self.watch = BlockWatch("a model")
        self.follower = Follower(self.watch)
        super().__init__(trie=PrefixTrie(limit, observer=self.watch), **changes)

    def step(self) -> Any:
        plan = super().step()
        self.watch.look(self.scheduler.slots)
        self.follower.hear()
        return plan

    def check(self) -> None:
        self.watch.look(self.scheduler.slots)
        self.follower.hear()
        slots = self.scheduler.slots
        in_slots = [HashChain(self.watch.root, s.identity, s.tokens[: s.n_exact]).hashes for s in slots]
        assert self.follower.held["slot"] == {each for hashes in in_slots for each in hashes}
        assert self.trie is not None
        in_trie = set()
        for identity, root in self.trie._roots.items():
            if identity.is_shifted:
                continue
            pending = list(root.children.values())
            while pending:
                node = pending.pop()
                pending += node.children.values()
                in_trie |= set(HashChain(self.watch.root, identity, path_tokens(node)).hashes)
        assert self.follower.held["ram"] == in_trie


@pytest.mark.parametrize("seed", range(6))
def test_whoever_hears_the_changes_knows_what_is_held(seed: int) -> None:
    rng = random.Random(seed)
    h = Watched(limit=400, n_slots=3)
    stems = [[rng.randrange(9) + 200 for _ in range(100)] for _ in range(3)]
    for task_id in range(40):
        stem = rng.choice(stems)
        tokens = [*stem[: rng.randrange(20, 100)], *(rng.randrange(50) for _ in range(rng.randrange(60)))]
        identity = rng.choice([BASE_IDENTITY, ADAPTED, CacheIdentity(tenant="t")])
        h.ask(task_id, tokens, identity=identity, n_cache_reuse=rng.choice([0, 8]))
        h.check()
    assert h.trie is not None and h.trie.evictions > 0


def test_a_context_shift_takes_blocks_away() -> None:
    h = Watched(n_slots=1, context_shift=True)
    h.submit(0, tokens=tuple(range(200)), n_predict=200)
    h.run(900)
    h.check()
    assert h.scheduler.slots[0].n_exact < 200


def test_two_adapters_with_the_same_tokens_share_no_hash() -> None:
    h = Watched(n_slots=2)
    prompt = tuple(range(3 * BLOCK_TOKENS))
    h.ask(0, prompt, id_slot=0)
    base = set(h.follower.held["slot"])
    h.ask(1, prompt, id_slot=1, identity=ADAPTED)
    assert len(base) == 3 and len(h.follower.held["slot"]) == 6


def test_a_split_node_keeps_its_blocks() -> None:
    watch = BlockWatch("a model")
    follower = Follower(watch)
    trie = PrefixTrie(None, observer=watch)

    def put(*tokens: int) -> None:
        trie.insert(BASE_IDENTITY, tokens, lambda n: n, lambda start, end: Span(end - start))
        follower.hear()

    put(*range(100))
    n = len(follower.held["ram"])
    put(*range(50), *range(500, 550))
    assert (n, len(follower.held["ram"])) == (3, 5)
    trie.clear()
    follower.hear()
    assert follower.held["ram"] == set()


def test_what_was_moved_from_other_positions_is_not_told_of() -> None:
    """Its hash is none that a router could compute, and only requests that say so may use it."""
    watch = BlockWatch("a model")
    trie = PrefixTrie(None, observer=watch)
    for tokens in (range(100), [*range(50), *range(500, 550)]):
        trie.insert(CacheIdentity(is_shifted=True), tokens, lambda n: n, lambda start, end: Span(end - start))
    trie.clear()
    assert trie.n_nodes == 0 and watch.take() == []


def test_losing_everything_is_told() -> None:
    h = Watched(n_slots=2)
    for task_id in range(4):
        h.ask(task_id, range(task_id * 100, task_id * 100 + 80))
    assert h.follower.held["slot"] and h.follower.held["ram"]
    h.watch.lose()
    h.follower.hear()
    assert h.follower.held == {"slot": set(), "ram": set()}


def test_the_disk_is_told_of_in_the_engines_turn() -> None:
    woken: list[bool] = []
    watch = BlockWatch("a model", lambda: woken.append(True))
    hash, parent = b"h" * 32, watch.root
    whole = DiskEvent(True, Kind.BLOCK, hash, parent, 0, BLOCK_TOKENS, ADAPTED)
    for event in (whole, replace(whole, kind=Kind.SNAPSHOT), replace(whole, n_tokens=5)):
        watch.on_disk(event)
    assert woken == [True]
    (change,) = watch.take()
    assert (change.kind, change.tier, change.block.hash) == ("stored", "disk", hash)
    assert change.block.adapter_id == ADAPTED.adapter_id
    watch.on_disk(replace(whole, is_stored=False))
    assert [each.kind for each in watch.take()] == ["removed"]
