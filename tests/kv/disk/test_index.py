"""The index against a naive model: what is found, what is removed first, that no chain ever has a hole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.kv.block_hash import BLOCK_TOKENS, root_hash
from mlxserver.kv.disk.entry import Entry, Kind, Name, unpacked_tokens
from mlxserver.kv.disk.index import DiskMatch, Index, Run
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity

ROOT = root_hash("a model")
OTHER = CacheIdentity(tenant="t")
BLOCKS = [[1] * BLOCK_TOKENS, [1] * 31 + [2], [1] * 5 + [3] * 27, list(range(BLOCK_TOKENS))]
"""Some begin alike."""


def names(identity: CacheIdentity, tokens: Sequence[int], has_snapshot: bool, bare: bool) -> list[Name]:
    """The files of a sequence, in order."""
    run = Run(ROOT, identity, tokens)
    found = []
    for i, each in enumerate(run.hashes):
        parts = "space", each, run.parent(i), identity, run.tokens(i), i * BLOCK_TOKENS
        if not bare:
            found.append(Name(Kind.BLOCK, *parts))
        if has_snapshot and i == len(run.hashes) - 1:
            found.append(Name(Kind.SNAPSHOT, *parts, bare))
    return found


def fill(index: Index, files: list[Name], nbytes: int = 10) -> list[Entry]:
    return [entry for name in files if (entry := index.add(name, nbytes)) is not None]


def longest(held: dict[Name, list[int]], identity: CacheIdentity, tokens: list[int], cuts: bool) -> int:
    """The naive search: every prefix, the longest first. ``held`` has each file's tokens from 0 on."""

    def block(want: list[int], exact: bool) -> bool:
        return any(
            name.kind is Kind.BLOCK
            and name.identity == identity
            and (whole == want if exact else whole[: len(want)] == want and name.start <= len(want) - 1)
            for name, whole in held.items()
        )

    for n in range(len(tokens), 0, -1):
        full = [tokens[:end] for end in range(BLOCK_TOKENS, n, BLOCK_TOKENS)]
        snapshots = [
            name
            for name, whole in held.items()
            if name.kind is Kind.SNAPSHOT and name.identity == identity and whole == tokens[:n]
        ]
        if not cuts and not snapshots:
            continue
        if snapshots and snapshots[0].bare and not cuts:
            return n
        if all(block(each, True) for each in full) and block(tokens[:n], not cuts):
            return n
    return 0


def sequences() -> st.SearchStrategy[list[int]]:
    picks = st.lists(st.sampled_from(BLOCKS), max_size=3)
    tails = st.tuples(st.sampled_from(BLOCKS), st.integers(0, 31))
    return st.builds(lambda blocks, tail: [*sum(blocks, []), *tail[0][: tail[1]]], picks, tails)


identities = st.sampled_from([BASE_IDENTITY, OTHER])


@given(
    kind=st.sampled_from(["plain", "hybrid", "bare"]),
    stored=st.lists(st.tuples(identities, sequences(), st.booleans(), st.booleans()), max_size=12),
    asked=st.lists(st.tuples(identities, sequences()), min_size=1, max_size=6),
)
@settings(max_examples=300)
def test_what_is_found_is_what_a_naive_search_finds(
    kind: str,
    stored: list[tuple[CacheIdentity, list[int], bool, bool]],
    asked: list[tuple[CacheIdentity, list[int]]],
) -> None:
    index, held = Index(None), dict[Name, list[int]]()
    for identity, tokens, has_snapshot, then_evict in stored:
        files = names(identity, tokens, kind == "bare" or (kind == "hybrid" and has_snapshot), kind == "bare")
        for entry in fill(index, files):
            held[entry.name] = tokens[: entry.name.start + entry.name.n]
        if then_evict and (oldest := index.oldest()) is not None:
            (gone,) = index.remove(oldest)
            del held[gone.name]
    index.check()
    cuts = kind == "plain"
    for identity, tokens in asked:
        match = index.find(Run(ROOT, identity, tokens), cuts)
        assert match.n == longest(held, identity, tokens, cuts)
        assert_whole(index, match, tokens, kind)


def assert_whole(index: Index, match: DiskMatch, tokens: list[int], kind: str) -> None:
    """The refs are there, without a gap, and of these tokens."""
    end = 0
    for ref in match.blocks:
        name = index.entries[ref.key].name
        assert (ref.start, name.start) == (end, end)
        assert list(unpacked_tokens(name.tokens))[: ref.end - end] == tokens[end : ref.end]
        end = ref.end
    assert end == (0 if kind == "bare" else match.n)
    assert (match.snapshot is not None) == (kind != "plain" and match.n > 0)
    assert match.snapshot is None or match.snapshot.end == match.n


def test_what_was_used_longest_ago_goes_first_and_its_end_before_its_beginning() -> None:
    index = Index(None)
    old = fill(index, names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1] + [1], False, False))
    new = fill(index, names(BASE_IDENTITY, BLOCKS[3] + BLOCKS[1], False, False))
    index.touch(old[0])  # of no use to it while others hang on it
    gone = []
    while (entry := index.oldest()) is not None:
        gone += index.remove(entry)
    assert gone == [old[2], old[1], new[1], new[0], old[0]]
    assert (index.nbytes, index.entries) == (0, {})


def test_a_clock_that_was_set_back_changes_no_order() -> None:
    index = Index(None)
    (name,) = names(BASE_IDENTITY, BLOCKS[0], False, False)
    earlier = index.add(name, 10, used=2**62)
    (later,) = fill(index, names(BASE_IDENTITY, BLOCKS[1], False, False))
    assert earlier and later.used > earlier.used and index.oldest() is earlier
    index.touch(earlier)
    assert index.oldest() is later


def test_a_snapshot_goes_before_its_block_and_alone() -> None:
    index = Index(None)
    block, snapshot = fill(index, names(BASE_IDENTITY, BLOCKS[0], True, False))
    (second,) = fill(index, names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1], False, False))
    assert index.n_snapshots == 1
    order = []
    while (entry := index.oldest()) is not None:
        order += index.remove(entry)
    assert order == [snapshot, second, block] and index.n_snapshots == 0


def test_what_is_read_stays() -> None:
    index = Index(None)
    first, second = fill(index, names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1], False, False))
    index.hold(second)
    assert index.oldest() is None
    index.release(second)
    assert index.oldest() is second


def test_removing_a_block_takes_what_hangs_on_it() -> None:
    index = Index(None)
    chain = fill(index, names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1] + [1, 1], True, False))
    assert set(index.remove(chain[1])) == set(chain[1:])
    assert list(index.entries.values()) == [chain[0]] and index.nbytes == 10
    index.check()
    assert fill(index, names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1] + [1, 1], True, False)) != []


def test_nothing_is_taken_in_behind_a_hole_or_twice() -> None:
    index = Index(None)
    chain = names(BASE_IDENTITY, BLOCKS[0] + BLOCKS[1], True, False)
    assert index.add(chain[1], 10) is None and index.add(chain[2], 10) is None
    assert index.add(chain[0], 10) is not None and index.add(chain[0], 10) is None
    assert index.nbytes == 10


@pytest.mark.parametrize("limit, exceeds", [(None, False), (25, False), (24, True)])
def test_the_limit_counts_what_could_not_be_removed(limit: int | None, exceeds: bool) -> None:
    index = Index(limit)
    fill(index, names(BASE_IDENTITY, [1], False, False))
    index.stuck = 10
    assert index.exceeds(5) is exceeds


def test_the_heap_of_leaves_stays_small() -> None:
    index = Index(None)
    (entry,) = fill(index, names(BASE_IDENTITY, [1], False, False))
    for _ in range(1000):
        index.touch(entry)
    assert len(index._leaves) < 50 and index.oldest() is entry
