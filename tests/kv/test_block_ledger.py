"""What is told of blocks that several hold."""

from __future__ import annotations

from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain, root_hash
from mlxserver.kv.block_ledger import BlockLedger, blocks_of
from mlxserver.kv.identity import CacheIdentity

ROOT = root_hash("a model")
ADAPTED = CacheIdentity(adapters=(("a" * 64, 1.0),))


def chain(n_blocks: int, identity: CacheIdentity = ADAPTED) -> HashChain:
    return HashChain(ROOT, identity, range(n_blocks * BLOCK_TOKENS + 3))


def test_blocks_name_the_one_before_them() -> None:
    blocks = blocks_of(chain(3))
    assert [block.parent for block in blocks] == [ROOT, blocks[0].hash, blocks[1].hash]
    assert {block.adapter_id for block in blocks} == {ADAPTED.adapter_id}
    assert len(ADAPTED.adapter_id) == 64
    assert {block.adapter_id for block in blocks_of(chain(1, CacheIdentity(tenant="t")))} == {""}
    assert blocks_of(chain(3), 1) == blocks[1:]


def test_a_block_of_two_holders_is_told_once() -> None:
    ledger = BlockLedger()
    blocks = blocks_of(chain(2))
    ledger.add("slot", blocks)
    ledger.add("slot", blocks[:1])
    assert [(c.kind, c.block) for c in ledger.take()] == [("stored", block) for block in blocks]
    ledger.remove("slot", blocks[:1])
    assert ledger.take() == []
    ledger.remove("slot", blocks[:1])
    assert [(c.kind, c.block) for c in ledger.take()] == [("removed", blocks[0])]


def test_tiers_are_told_apart() -> None:
    ledger = BlockLedger()
    blocks = blocks_of(chain(1))
    for tier in ("slot", "ram", "disk"):
        ledger.add(tier, blocks)  # type: ignore[arg-type]
    assert [c.tier for c in ledger.take()] == ["slot", "ram", "disk"]


def test_children_go_before_their_parents() -> None:
    ledger = BlockLedger()
    blocks = blocks_of(chain(3))
    ledger.add("ram", blocks)
    ledger.take()
    ledger.remove("ram", blocks)
    assert [c.block for c in ledger.take()] == blocks[::-1]
