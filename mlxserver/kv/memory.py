"""The bytes that MLX may take: asked for before, since MLX on the CPU survives no failed allocation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from mlxserver.kv.trie import PrefixTrie

log = logging.getLogger("mlxserver.srv")

MIB = 2**20
SHORT_PROMPT = 256
LEAST_PIECE = 16
"""Prompt tokens that are not evaluated in smaller pieces."""


class OutOfMemory(Exception):
    """One line that names what was needed and what there is."""


@dataclass(frozen=True, slots=True)
class MemoryCosts:
    """What a model takes, in bytes; measured once (engine/memory_probe.py)."""

    token: int = 0
    """While it is evaluated in a prompt: activations of a layer or two."""
    score: float = 0.0
    """For each token and each column that it may attend to, while a layer is evaluated."""
    column: int = 0
    """Of a row that is read in another type than it is held in, while a layer is evaluated."""
    row: int = 0
    """Of a step, for each row: logits, and what sampling makes of them."""
    kv: int = 0
    """A token's state in the plain layers."""
    layer_kv: int = 0
    """Of that in the largest of them."""
    fixed: int = 0
    """A slot's state that does not grow."""
    windows: tuple[tuple[int, int], ...] = ()
    """(a token's state, most tokens) of each layer with a window."""

    def chunk(self, n: int, end: int) -> int:
        """While ``n`` tokens of a prompt up to ``end`` are evaluated."""
        return int(n * self.token + n * end * self.score + end * self.column)

    def step(self, n_rows: int, end: int) -> int:
        """While one token of each row is evaluated."""
        return int(n_rows * (self.token + self.row + end * (self.score + self.column)))

    def least(self) -> int:
        """For one slot with a short prompt."""
        n = SHORT_PROMPT
        cells = n * (self.kv + self.layer_kv)
        return cells + self.slot(n) + max(self.chunk(LEAST_PIECE, n), self.step(1, n))

    def slot(self, n: int) -> int:
        """What a slot of ``n`` tokens holds beside the plain layers' buffers."""
        return self.fixed + sum(each * min(n, most) for each, most in self.windows)


class MemoryBudget:
    """``limit``: bytes of MLX's arrays; None: no bound. For the engine thread only.

    What lacks is found in this order: arrays that MLX keeps for later ones, then the leaves of ``trie`` that
    were used longest ago.
    """

    def __init__(self, limit: int | None, active: Callable[[], int] = mx.get_active_memory) -> None:
        self.limit = limit
        self.costs = MemoryCosts()
        self._active = active
        self._trie: PrefixTrie | None = None

    def attach(self, trie: PrefixTrie | None) -> None:
        """Who stores state in the trie asks here too."""
        self._trie = trie
        if trie is not None:
            trie.lacking = self.lacking

    def lacking(self, nbytes: int) -> int:
        """How many bytes are too few for so many more."""
        if self.limit is None:
            return 0
        if (lacking := self._lacking(nbytes)) > 0:
            mx.synchronize()  # what a step under way needs for a while only is no bar
            lacking = self._lacking(nbytes)
            mx.clear_cache()
        return max(0, lacking)

    def could_have(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes if stored state goes. Drops nothing."""
        return self.lacking(nbytes) <= (self._trie.evictable if self._trie else 0)

    def has_room(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes now. Drops nothing where there would be none anyway."""
        lacking = self.lacking(nbytes)
        if lacking == 0 or self._trie is None or lacking > self._trie.evictable:
            return lacking == 0
        self._trie.shrink(lambda: self._lacking(nbytes) <= 0)
        return self.lacking(nbytes) == 0

    def claim(self, nbytes: int, what: str) -> None:
        """Raises OutOfMemory where so many bytes cannot be had."""
        if not self.has_room(nbytes):
            assert self.limit is not None
            free = f"{_mib(max(0, self.limit - self._active()))} of {_mib(self.limit)} MiB are free"
            raise OutOfMemory(f"out of memory: {what} needs {_mib(nbytes)} MiB, {free}")

    def drop_all(self) -> None:
        """After an allocation that failed: whatever can go."""
        if self._trie is not None:
            self._trie.clear()
        mx.synchronize()
        mx.clear_cache()

    def _lacking(self, nbytes: int) -> int:
        assert self.limit is not None
        reserved = self._trie.reserved if self._trie else 0
        return self._active() + reserved + nbytes - self.limit


def is_exhausted(error: BaseException) -> bool:
    """Whether MLX or Python could not allocate something."""
    text = str(error)
    return isinstance(error, MemoryError) or any(
        words in text for words in ("[metal::malloc]", "[malloc", "Unable to allocate", "Insufficient Memory")
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:.1f}" if nbytes < 100 * MIB else f"{nbytes // MIB}"
