"""State read from disk: put together on the reader's thread, taken into the trie on the engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxserver.engine.disk_tier import Part
from mlxserver.kv.disk.index import DiskRef
from mlxserver.kv.disk.store import DiskStore
from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.kv_type import Parts
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSpan
from mlxserver.kv.trie import Node, PrefixTrie


@dataclass(frozen=True, slots=True)
class Restored:
    """``states``: the ``cache.state`` of each layer that cannot be cut, where a snapshot was read."""

    span: KVSpan
    states: tuple[Any, ...] | None


def read_chunk(store: DiskStore, refs: Sequence[DiskRef], is_stopped: Callable[[], bool]) -> Part | None:
    """The files of a chunk as one part; None where it is stopped before its end. Raises DiskError."""
    spans: list[KVSpan] = []
    states: tuple[Any, ...] | None = None
    nbytes = 0
    for ref in refs:
        if is_stopped():
            return None
        block = store.read(ref)
        if block.states:
            states = block.states
            nbytes += ref.nbytes
        else:
            spans.append(block.span)
    span = joined(spans)
    start, end = refs[0].start, refs[-1].end
    return Part(start, end, len(refs), span.nbytes + nbytes, Restored(span, states), states is not None)


def joined(spans: Sequence[KVSpan]) -> KVSpan:
    """Spans that follow each other as one."""
    if len(spans) < 2:
        return spans[0] if spans else KVSpan(())
    layers = tuple(
        (_joined([span.layers[i][0] for span in spans]), _joined([span.layers[i][1] for span in spans]))
        for i in range(len(spans[0].layers))
    )
    mx.eval(layers)
    return KVSpan(layers)


def _joined(pieces: Sequence[Parts]) -> Parts:
    return tuple(mx.concatenate(list(parts), axis=2, stream=mx.cpu) for parts in zip(*pieces, strict=True))


class Publisher:
    """Only state that fits the slots' buffers gets in."""

    def __init__(self, states: SlotStates, trie: PrefixTrie) -> None:
        self._states = states
        self._trie = trie

    def publish(self, identity: CacheIdentity, tokens: Sequence[int], parts: Sequence[Part]) -> Node | None:
        """Raises ValueError for state of another shape than this model's."""
        trie = self._trie
        start, end = parts[0].start, parts[-1].end
        span = joined([part.state.span for part in parts if part.state.span.layers])
        wanted = tokens[:end]
        held = trie.match(identity, wanted).n
        if span.layers and not self._states.fits(span, end - start):
            raise ValueError("the stored keys and values are not this model's")
        goes_on_from = start if span.layers else end
        if held < goes_on_from and self._states.has_spans:
            return None  # what it goes on from has gone meanwhile
        states = parts[-1].state.states
        snapshot = self._states.snapshot_of(states) if states is not None else None
        width = span.nbytes // span.n if span.n else 0
        trie.insert(
            identity,
            wanted,
            lambda n: n * width,
            lambda lo, hi: span.part(slice(lo - start, hi - start)) if (lo, hi) != (start, end) else span,
            snapshot,
        )
        match = trie.match(identity, wanted)
        node = match.nodes[-1] if match.nodes else None
        if node is None or match.n < end or (snapshot is not None and node.snapshot is None):
            return None
        return node
