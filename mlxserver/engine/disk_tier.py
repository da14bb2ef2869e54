"""What the engine asks of the state stored on disk (``mlxserver.kv.disk``); plain data, no arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mlxserver.kv.identity import CacheIdentity


class BlockRef(Protocol):
    """A stored file: the state of the tokens ``[start, end)``, or the one after the last of them."""

    @property
    def key(self) -> Hashable: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Of the file: what it takes in memory, and a little more."""
        ...


class DiskMatch(Protocol):
    """What is stored of a prompt's first ``n`` tokens: blocks in order and without a gap, and the snapshot at
    their end where state cannot be cut."""

    @property
    def n(self) -> int: ...

    @property
    def blocks(self) -> Sequence[BlockRef]: ...

    @property
    def snapshot(self) -> BlockRef | None: ...


class HeldOnDisk(Protocol):
    """Files and bytes of files: held now, or totals since the start."""

    @property
    def blocks(self) -> int: ...

    @property
    def snapshots(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def limit(self) -> int | None: ...

    @property
    def written(self) -> int: ...

    @property
    def written_bytes(self) -> int: ...

    @property
    def removed(self) -> int: ...

    @property
    def dropped(self) -> int: ...

    @property
    def failed(self) -> int: ...


class Disk(Protocol):
    """Answers without I/O."""

    def find(self, identity: CacheIdentity, tokens: Sequence[int], cuts: bool) -> DiskMatch:
        """The longest stored prefix. ``cuts``: state can be cut anywhere; else it ends at a snapshot."""
        ...

    def stats(self) -> HeldOnDisk: ...


@dataclass(frozen=True, slots=True)
class Part:
    """State read from disk: of the tokens ``[start, end)``, or with ``is_whole`` also what cannot be cut
    after the last of them."""

    start: int
    end: int
    n_files: int
    nbytes: int
    """In memory."""
    state: Any
    """Arrays, for the publisher."""
    has_snapshot: bool = False
