"""The disk tier of a process: the store, the thread that reads from it, what a scheduler needs of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.prefetch_policy import PrefetchPolicy
from mlxserver.engine.publisher import Publisher, read_chunk
from mlxserver.engine.reader import Arrived, Reader
from mlxserver.engine.restore import Tier
from mlxserver.kv.disk.books import DiskEvent
from mlxserver.kv.disk.store import QUEUE_LIMIT, DiskStore
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.trie import PrefixTrie

MIB = 2**20
KNOWN_SECONDS = 2.0
"""How long a server waits at its start until it knows what earlier ones left; the rest it learns later."""
READ_SECONDS = 1.0
"""How long the file that is being read may take at the end."""


class DiskTier:
    """Outlives slots and trie. Raises DiskError where the folder cannot be used."""

    def __init__(
        self,
        config: EngineConfig,
        space: str,
        post: Callable[[Arrived], None],
        observer: Callable[[DiskEvent], None] | None = None,
    ) -> None:
        limit = config.cache_disk_size * MIB if config.cache_disk_size > 0 else None
        self.queue_limit = QUEUE_LIMIT
        self.store = DiskStore(
            Path(config.cache_disk), limit, space, queue_limit=self.queue_limit, observer=observer
        )
        self._policy = PrefetchPolicy(config.cache_disk_prefetch, config.cache_disk_timeout / 1000)
        self._reader = Reader(partial(read_chunk, self.store), post, at_end=mx.clear_streams)
        self.store.flush(KNOWN_SECONDS)

    def of(self, states: SlotStates, trie: PrefixTrie) -> Tier:
        """For a scheduler of these slots."""
        publish = Publisher(states, trie).publish
        return Tier(self.store, self._reader, publish, self._policy, trie, states.is_plain)

    def close(self, seconds: float) -> None:
        """What is queued is written for so long."""
        self._reader.close(READ_SECONDS)
        self.store.close(seconds)
