"""The key of an identity says all of it, and only a key does."""

from __future__ import annotations

import pytest

from mlxserver.kv.identity import BASE_IDENTITY, CacheIdentity, identity_of


@pytest.mark.parametrize(
    "identity",
    [
        BASE_IDENTITY,
        CacheIdentity(adapters=(("a" * 64, 0.1), ("b" * 64, 1.0))),
        CacheIdentity(tenant='é"t'),
        CacheIdentity(is_shifted=True),
        CacheIdentity((("a" * 64, -2.5),), "t", True),
    ],
)
def test_there_and_back(identity: CacheIdentity) -> None:
    assert identity_of(identity.key) == identity


@pytest.mark.parametrize(
    "key", [b"{}", b"{", b"[]", b'{"adapters":[]}', b'{"tenant": "t"}', b'{"shifted":1}', b'{"x":1}', b"\xff"]
)
def test_other_bytes_are_refused(key: bytes) -> None:
    with pytest.raises(ValueError):
        identity_of(key)
