"""What a token's cached state depends on besides the tokens before it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

Adapters = tuple[tuple[str, float], ...]
"""(digest of an adapter's weights, scale), sorted, scales of 0 left out; empty is the base model."""


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Equal identities may share state; unequal ones never do.

    What is fixed for a process (model, revision, compute dtype, KV types) is not repeated here;
    it joins the identity where state leaves the process.
    """

    adapters: Adapters = ()
    tenant: str = ""
    is_shifted: bool = False
    """Some of the keys were moved here from other positions: not what a cold evaluation gives."""

    @property
    def adapter_id(self) -> str:
        """Names the set of adapters and their scales; empty for the base model."""
        return hashlib.sha256(_json(_listed(self.adapters))).hexdigest() if self.adapters else ""

    @property
    def key(self) -> bytes:
        """What of it goes into each block's hash (docs/cache.md); empty for the base model's own state."""
        parts: dict[str, Any] = {}
        if self.adapters:
            parts["adapters"] = _listed(self.adapters)
        if self.is_shifted:
            parts["shifted"] = True
        if self.tenant:
            parts["tenant"] = self.tenant
        return _json(parts) if parts else b""


def _listed(adapters: Adapters) -> list[list[Any]]:
    return [[digest, scale] for digest, scale in adapters]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


BASE_IDENTITY = CacheIdentity()


def identity_of(key: bytes) -> CacheIdentity:
    """The identity whose ``key`` it is. Raises ValueError for bytes that are none's."""
    parts = json.loads(key) if key else {}
    try:
        adapters = tuple((digest, scale) for digest, scale in parts.get("adapters", []))
        identity = CacheIdentity(adapters, parts.get("tenant", ""), parts.get("shifted", False))
        sound = identity.key == key
    except (TypeError, AttributeError) as error:
        raise ValueError("not the key of an identity") from error
    if not sound:
        raise ValueError("not the key of an identity")
    return identity
