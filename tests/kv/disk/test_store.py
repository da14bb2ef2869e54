"""The disk tier from put to read: round trips of every KV type, what is missing, restarts."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.kv.block_hash import HashChain, block_hash, root_hash
from mlxserver.kv.disk.books import DiskEvent
from mlxserver.kv.disk.entry import DiskError, Kind, Name
from mlxserver.kv.disk.folder import Folder, Pieces
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.kv_type import KV_TYPES
from mlxserver.kv.prefix import common_prefix
from mlxserver.kv.spans import KVSpan
from tests.kv.disk.spans import SPACE, equal, numbers, opened, span_of

OTHER = CacheIdentity(adapters=(("a" * 64, 0.5),), tenant="t")


def restored(store: DiskStore, tokens: list[int], identity: CacheIdentity = BASE_IDENTITY) -> KVSpan:
    """What is stored of the tokens, put together."""
    match = store.find(identity, tokens, cuts=True)
    blocks = [store.read(ref) for ref in match.blocks]
    assert [block.start for block in blocks] == [0, *(block.end for block in blocks)][: len(blocks)]
    n_parts = [tuple(map(len, pair)) for pair in blocks[0].span.layers]
    layers = tuple(
        tuple(
            tuple(
                mx.concatenate([block.span.layers[i][side][j] for block in blocks], axis=2)
                for j in range(n[side])
            )
            for side in range(2)
        )
        for i, n in enumerate(n_parts)
    )
    return KVSpan(layers)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("kind", KV_TYPES)
def test_what_is_put_is_read_after_a_restart(tmp_path: Path, kind: str, n: int) -> None:
    tokens = numbers(n)
    span = span_of(tokens, kind=KV_TYPES[kind])
    with opened(tmp_path) as store:
        assert store.missing(BASE_IDENTITY, tokens).start == 0
        assert store.put(BASE_IDENTITY, tokens, 0, span)
    with opened(tmp_path) as store:
        assert store.find(BASE_IDENTITY, [*tokens, 1, 2], cuts=True).n == n
        assert not store.missing(BASE_IDENTITY, tokens)
        assert equal(restored(store, tokens), span)
        assert store.stats().blocks == -(-n // 32)


def test_a_conversation_that_grows_is_stored_to_its_last_token(tmp_path: Path) -> None:
    tokens = numbers(90)
    with opened(tmp_path) as store:
        for n in (20, 50, 90):
            start = store.missing(BASE_IDENTITY, tokens[:n]).start
            assert start == {20: 0, 50: 0, 90: 32}[n]
            store.put(BASE_IDENTITY, tokens[:n], start, span_of(tokens[:n], start))
            assert store.flush(10)
            assert store.find(BASE_IDENTITY, tokens, cuts=True).n == n
        assert store.stats().blocks == 3, "what a longer block holds too is not kept"
        assert equal(restored(store, tokens), span_of(tokens))
        assert equal(restored(store, tokens[:40]), span_of(tokens[:40])), "a block is cut where tokens part"


def test_identities_and_models_share_nothing(tmp_path: Path) -> None:
    tokens = numbers(40)
    with opened(tmp_path) as store:
        store.put(OTHER, tokens, 0, span_of(tokens))
        assert store.flush(10)
        assert store.find(BASE_IDENTITY, tokens, cuts=True).n == 0
        assert store.find(OTHER, tokens, cuts=True).n == 40
    with opened(tmp_path, space="another model") as store:
        assert store.find(OTHER, tokens, cuts=True).n == 0
        assert store.stats().blocks == 2, "but its files count"
    with opened(tmp_path) as store:
        assert equal(restored(store, tokens, OTHER), span_of(tokens))


def test_a_second_server_is_refused_by_name(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(DiskError, match=r"in use by another server \(process \d+\)"):
            DiskStore(tmp_path, None, SPACE)
    with opened(tmp_path):
        pass


class Unsynced(Folder):
    """Quick."""

    def _sync(self, file: int) -> None:
        pass


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


sequences = st.builds(
    lambda a, b, n: ([a] * 40 + [b] * 60)[:n], st.integers(1, 2), st.integers(3, 4), st.integers(1, 100)
)
identities = st.sampled_from([BASE_IDENTITY, OTHER])


@given(
    work=st.lists(st.tuples(identities, sequences, st.sampled_from(["put", "read", "restart"])), max_size=14),
    limit=st.sampled_from([None, 6000, 20_000]),
)
@settings(max_examples=60)
def test_whatever_happens_what_is_found_is_the_state_of_its_tokens(
    work: list[tuple[CacheIdentity, list[int], str]], limit: int | None
) -> None:
    """Against a naive model: the longest prefix of what was put, and less only where room had to be made."""
    put: list[tuple[CacheIdentity, list[int]]] = []
    with TemporaryDirectory() as name:
        store = DiskStore(Path(name), limit, SPACE, open_folder=Unsynced)
        for identity, tokens, what in work:
            if what == "put":
                start = store.missing(identity, tokens).start
                if start < len(tokens):
                    assert store.put(identity, tokens, start, span_of(tokens, start, n_layers=1))
                put.append((identity, tokens))
            elif what == "restart":
                store.close()
                store = DiskStore(Path(name), limit, SPACE, open_folder=Unsynced)
            assert store.flush(30)
            store.check()
            stats = store.stats()
            assert stats.nbytes == size_on_disk(Path(name)) and (limit is None or stats.nbytes <= limit)
            assert stats.failed == 0 and stats.queued == stats.queued_bytes == 0
            found = store.find(identity, tokens, cuts=True)
            most = max((common_prefix(tokens, each) for i, each in put if i == identity), default=0)
            assert found.n == most if limit is None else found.n <= most
            if what == "read" and found.n:
                assert equal(restored(store, tokens, identity), span_of(tokens[: found.n], n_layers=1))
        store.close()


def test_a_limit_removes_whole_ends_of_what_was_used_longest_ago(tmp_path: Path) -> None:
    prompts = [numbers(96, seed) for seed in range(4)]
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, prompts[0], 0, span_of(prompts[0]))
    block = size_on_disk(tmp_path) // 3
    with opened(tmp_path, limit=7 * block + 2000) as store:
        for prompt in prompts[1:]:
            store.put(BASE_IDENTITY, prompt, 0, span_of(prompt))
            assert store.flush(10)
            store.missing(BASE_IDENTITY, prompts[1])  # it counts as used
        lengths = [store.find(BASE_IDENTITY, prompt, cuts=True).n for prompt in prompts]
        assert lengths == [0, 96, 32, 96]
        assert (store.stats().removed, store.stats().blocks) == (5, 7)
    with opened(tmp_path, limit=2 * block + 2000) as store:
        assert [store.find(BASE_IDENTITY, prompt, cuts=True).n for prompt in prompts] == [0, 64, 0, 0], (
            "what was used last is known after a restart"
        )


def test_a_prompt_larger_than_the_limit_keeps_its_beginning(tmp_path: Path) -> None:
    tokens = numbers(200)
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, tokens[:32], 0, span_of(tokens[:32]))
    with opened(tmp_path, limit=int(2.5 * size_on_disk(tmp_path))) as store:
        store.put(BASE_IDENTITY, tokens, 0, span_of(tokens))
        assert store.flush(10)
        assert store.find(BASE_IDENTITY, tokens, cuts=True).n == 64
        assert store.stats().dropped == 5


def test_a_limit_that_holds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, limit=0) as store:
        store.put(BASE_IDENTITY, numbers(40), 0, span_of(numbers(40)))
        assert store.flush(10)
        assert (store.stats().dropped, store.stats().blocks, size_on_disk(tmp_path)) == (2, 0, 0)


class Stopped(Folder):
    """Waits before each write until the test lets it go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_go = threading.Event()

    def write(self, name: Name, pieces: Pieces) -> None:
        assert self.may_go.wait(30)
        super().write(name, pieces)


def stopped(folder: Path, **options: Any) -> tuple[DiskStore, Stopped]:
    kept: list[Stopped] = []

    def open_folder(path: Path) -> Folder:
        kept.append(Stopped(path))
        return kept[0]

    return DiskStore(folder, None, SPACE, open_folder=open_folder, **options), kept[0]


def test_the_queue_is_bounded_and_never_waits(tmp_path: Path) -> None:
    spans = [span_of(numbers(32, seed)) for seed in range(3)]
    store, folder = stopped(tmp_path, queue_limit=2 * spans[0].nbytes)
    assert [store.put(BASE_IDENTITY, numbers(32, i), 0, span) for i, span in enumerate(spans)] == [
        True,
        True,
        False,
    ]
    assert store.put(BASE_IDENTITY, numbers(32, 0), 0, spans[0]), "it is queued already"
    assert (store.stats().queued, store.stats().dropped) == (2, 1)
    assert not store.missing(BASE_IDENTITY, numbers(32, 1)) and store.missing(BASE_IDENTITY, numbers(32, 2))
    assert not store.flush(0.01)
    folder.may_go.set()
    assert store.flush(10)
    assert (store.stats().written, store.stats().queued_bytes) == (2, 0)
    assert store.put(BASE_IDENTITY, numbers(32, 2), 0, spans[2])
    store.close()
    assert store.stats().written == 3


def test_closing_finishes_the_queue_or_the_file_in_hand(tmp_path: Path) -> None:
    tokens = numbers(96)
    store, folder = stopped(tmp_path)
    store.put(BASE_IDENTITY, tokens, 0, span_of(tokens))
    threading.Timer(0.3, folder.may_go.set).start()
    assert store.close(timeout=0.1)
    assert store.stats().written < 3
    assert store.find(BASE_IDENTITY, tokens, cuts=True).n == 0
    assert not store.put(BASE_IDENTITY, numbers(5, 1), 0, span_of(numbers(5, 1)))
    with opened(tmp_path) as store:
        assert store.find(BASE_IDENTITY, tokens, cuts=True).n == 32 * store.stats().blocks


def test_a_block_that_is_read_is_not_removed(tmp_path: Path) -> None:
    old, new = numbers(32, 0), numbers(32, 1)
    with opened(tmp_path) as store:
        store.put(BASE_IDENTITY, old, 0, span_of(old))
    limit = size_on_disk(tmp_path) + 100
    with opened(tmp_path, limit=limit) as store:
        (ref,) = store.find(BASE_IDENTITY, old, cuts=True).blocks
        entry = store._held(ref)
        store.put(BASE_IDENTITY, new, 0, span_of(new))
        assert store.flush(10) and store.stats().dropped == 1
        store._books.index.release(entry)
        store.put(BASE_IDENTITY, new, 0, span_of(new))
        assert store.flush(10) and store.find(BASE_IDENTITY, new, cuts=True).n == 32
        with pytest.raises(DiskError, match="gone"):
            store.read(ref)


def test_what_came_and_went_is_told(tmp_path: Path) -> None:
    events: list[DiskEvent] = []
    tokens = numbers(40)
    root, chain = root_hash(SPACE), HashChain(root_hash(SPACE), OTHER, tokens).hashes
    tail = block_hash(chain[0], OTHER, tokens[32:])
    longer = block_hash(chain[0], OTHER, numbers(41)[32:])
    block = Kind.BLOCK
    with opened(tmp_path, observer=events.append) as store:
        store.put(OTHER, tokens, 0, span_of(tokens))
        assert store.flush(10)
        store.put(OTHER, numbers(41), 32, span_of(numbers(41), 32))
        assert store.flush(10)
    assert events == [
        DiskEvent(True, block, chain[0], root, 0, 32, OTHER),
        DiskEvent(True, block, tail, chain[0], 32, 8, OTHER),
        DiskEvent(True, block, longer, chain[0], 32, 9, OTHER),
        DiskEvent(False, block, tail, chain[0], 32, 8, OTHER),
    ]
    with opened(tmp_path, limit=0, observer=events.append):
        assert events[4:] == [
            DiskEvent(True, block, chain[0], root, 0, 32, OTHER),
            DiskEvent(True, block, longer, chain[0], 32, 9, OTHER),
            DiskEvent(False, block, longer, chain[0], 32, 9, OTHER),
            DiskEvent(False, block, chain[0], root, 0, 32, OTHER),
        ]
    with opened(tmp_path, space="another model", observer=events.append):
        assert len(events) == 8


def test_state_of_another_length_is_a_fault_of_the_callers(tmp_path: Path) -> None:
    with opened(tmp_path) as store, pytest.raises(ValueError):
        store.put(BASE_IDENTITY, numbers(10), 0, span_of(numbers(9)))
