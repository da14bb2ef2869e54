"""What a token's cached state depends on besides the tokens before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Equal identities may share state; unequal ones never do.

    What is fixed for a process (model, revision, compute dtype, KV types) is not repeated here;
    it joins the identity where state leaves the process.
    """

    adapters: tuple[tuple[int, float], ...] = ()
    """(adapter id, scale), sorted, scales of 0 left out; empty is the base model."""
    tenant: str = ""
    is_shifted: bool = False
    """Some of the keys were moved here from other positions: not what a cold evaluation gives."""


BASE_IDENTITY = CacheIdentity()
