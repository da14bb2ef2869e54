"""The chain of block hashes: pinned values, and that no two identities ever share one."""

from __future__ import annotations

import hashlib
import struct

import pytest

from mlxserver.kv.block_hash import BLOCK_TOKENS, HashChain, block_hash, root_hash
from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity

ROOT = root_hash("a model")
TOKENS = list(range(100, 100 + 3 * BLOCK_TOKENS))
A, B = "a" * 64, "b" * 64
IDENTITIES = [
    BASE_IDENTITY,
    CacheIdentity(adapters=((A, 1.0),)),
    CacheIdentity(adapters=((A, 0.5),)),
    CacheIdentity(adapters=((B, 1.0),)),
    CacheIdentity(adapters=((A, 1.0), (B, 1.0))),
    CacheIdentity(tenant="t"),
    CacheIdentity(adapters=((A, 1.0),), tenant="t"),
    CacheIdentity(is_shifted=True),
]


def test_a_base_block_is_what_a_router_can_compute_without_knowing_of_adapters() -> None:
    packed = struct.pack("<33I", 32, *TOKENS[:32])
    expected = hashlib.sha256(hashlib.sha256(b"a model").digest() + packed).digest()
    assert HashChain(ROOT, BASE_IDENTITY, TOKENS).hashes[0] == expected


def test_the_key_of_an_adapter_is_canonical_json() -> None:
    assert BASE_IDENTITY.key == b""
    identity = CacheIdentity(adapters=((A, 1.0), (B, 0.25)), tenant="t", is_shifted=True)
    key = f'{{"adapters":[["{A}",1.0],["{B}",0.25]],"shifted":true,"tenant":"t"}}'
    assert identity.key == key.encode()


def test_chains_of_different_identities_have_no_hash_in_common() -> None:
    chains = [HashChain(ROOT, identity, TOKENS).hashes for identity in IDENTITIES]
    every = [each for chain in chains for each in chain]
    assert len(every) == len(set(every)) == 3 * len(IDENTITIES)


def test_every_block_is_keyed_and_not_only_the_first() -> None:
    """Behind the same parent a block still has another name for each identity."""
    names = {block_hash(ROOT, identity, TOKENS[:BLOCK_TOKENS]) for identity in IDENTITIES}
    assert len(names) == len(IDENTITIES)


@pytest.mark.parametrize("step", [1, 5, BLOCK_TOKENS, BLOCK_TOKENS + 1])
def test_a_chain_that_grows_is_the_chain_of_the_whole(step: int) -> None:
    whole = HashChain(ROOT, IDENTITIES[1], TOKENS)
    grown = HashChain(ROOT, IDENTITIES[1])
    new = [each for i in range(0, len(TOKENS), step) for each in grown.extend(TOKENS[i : i + step])]
    assert new == grown.hashes == whole.hashes
    assert (grown.last, grown.n_tokens) == (whole.last, len(TOKENS))


def test_a_prompt_shorter_than_a_block_lands_in_its_adapters_space_when_it_grows() -> None:
    base, adapted = HashChain(ROOT, BASE_IDENTITY, TOKENS[:3]), HashChain(ROOT, IDENTITIES[1], TOKENS[:3])
    assert not base.hashes and not adapted.hashes
    assert base.extend(TOKENS[3:BLOCK_TOKENS]) != adapted.extend(TOKENS[3:BLOCK_TOKENS])
    assert adapted.hashes == HashChain(ROOT, IDENTITIES[1], TOKENS[:BLOCK_TOKENS]).hashes


def test_other_models_have_other_roots() -> None:
    assert root_hash("a model") != root_hash("another")
