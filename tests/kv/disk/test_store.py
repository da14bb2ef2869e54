"""The disk tier from put to read: round trips of every KV type, what is missing, restarts."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from mlxserver.kv.disk.entry import DiskError
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from mlxserver.kv.kv_type import KV_TYPES
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
