"""With tenants nothing that one key's prompts left serves another's, wherever it lies.

Chunks at other positions, the disk tier and what is read ahead from it: test_chunk_reuse.py,
test_disk_tier.py, test_prefetch.py. Streams: tests/api/test_streams.py.
"""

from __future__ import annotations

from pathlib import Path

from mlxserver.engine.task import Started
from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity
from tests.engine.bench import Bench, oracle
from tests.engine.test_slot_actions import PROMPT, act
from tests.models import tiny

ALICE, BOB = CacheIdentity(tenant="alice"), CacheIdentity(tenant="bob")


class Shared:
    def __init__(self) -> None:
        self.bench = Bench(tiny.llama)
        self.cold = oracle(tiny.llama(), PROMPT, 4)
        self._n_asked = 0

    def n_reused(self, identity: CacheIdentity, slot: int) -> int:
        """Of PROMPT; the answer is right in any case."""
        task, self._n_asked = self._n_asked, self._n_asked + 1
        self.bench.submit(task, PROMPT, n_predict=4, id_slot=slot, identity=identity)
        assert self.bench.finish(task)[0] == self.cold
        n: int = self.bench.of(task, Started)[0].n_past
        return n


def test_slots_stored_state_and_slot_files(tmp_path: Path) -> None:
    shared, whole = Shared(), len(PROMPT) - 1
    assert shared.n_reused(ALICE, 0) == 0
    assert act(shared.bench, "save", 0, tmp_path / "file").error == ""  # by whoever has a key
    assert shared.n_reused(BOB, 1) == 0, "from another slot"
    assert shared.n_reused(BASE_IDENTITY, 0) == 0, "from the slot itself"
    assert shared.n_reused(CacheIdentity(tenant="dave"), 0) == 0, "from what it left in the trie"
    assert shared.n_reused(ALICE, 2) == whole
    act(shared.bench, "erase", 3)
    assert act(shared.bench, "restore", 3, tmp_path / "file").error == ""
    assert shared.n_reused(CacheIdentity(tenant="carol"), 3) == 0, "from a file"
    assert act(shared.bench, "restore", 3, tmp_path / "file").error == ""
    assert shared.n_reused(ALICE, 3) == whole
    shared.bench.close()


def test_who_hears_of_blocks_cannot_try_another_ones_prompts() -> None:
    """A block's hash has the identity in it, and the tenant is a digest of a key."""
    root, tokens = bytes(32), tuple(range(2 * BLOCK_TOKENS))
    told = HashChain(root, ALICE, tokens).hashes
    for guess in (BOB, BASE_IDENTITY, CacheIdentity(tenant="")):
        assert not set(told) & set(HashChain(root, guess, tokens).hashes)
