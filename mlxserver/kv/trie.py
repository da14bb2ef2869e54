"""The prefix trie: whose prompts begin alike share the state of the common part, once, whoever sent them.

A radix tree over token ids, one root an identity. The trie knows no arrays: what a node holds of the
model's state is a ``Span`` (state that can be cut between any two tokens) and, at the node's end, maybe a
``Snapshot`` (state that cannot be cut). Both only tell their size.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlxserver.kv.identity import CacheIdentity
from mlxserver.kv.prefix import common_prefix


class Span(Protocol):
    """The state of a run of tokens."""

    @property
    def nbytes(self) -> int: ...

    def split(self, n: int) -> tuple[Span, Span]:
        """The first ``n`` tokens and the rest; neither keeps the other's memory alive."""
        ...


class Snapshot(Protocol):
    """The state after a node's last token, where it cannot be cut."""

    @property
    def nbytes(self) -> int: ...


class Observer(Protocol):
    """Is told what becomes of the nodes."""

    def stored(self, identity: CacheIdentity, node: Node) -> None: ...

    def split(self, upper: Node, lower: Node) -> None:
        """``lower`` held the tokens of both before."""
        ...

    def removed(self, node: Node) -> None: ...


STALE = 8
"""Entries a node that the heap of leaves may hold before it is made anew."""


@dataclass(slots=True, eq=False)
class Node:
    tokens: array[int]
    span: Span
    parent: Node | None
    end: int
    """Tokens from the root to this node's end."""
    snapshot: Snapshot | None = None
    children: dict[int, Node] = field(default_factory=dict)
    pins: int = 0
    last_used: int = 0

    @property
    def start(self) -> int:
        return self.end - len(self.tokens)

    @property
    def nbytes(self) -> int:
        return self.span.nbytes + (self.snapshot.nbytes if self.snapshot else 0)


@dataclass(frozen=True, slots=True)
class Match:
    """The nodes that a prompt runs through, in order; of the last one maybe only the first tokens."""

    nodes: tuple[Node, ...]
    n: int
    """Tokens that agree."""

    def snapshot(self, most: int) -> Node | None:
        """The deepest node with a snapshot that ends within the first ``most`` matching tokens."""
        within = min(most, self.n)
        return next((node for node in reversed(self.nodes) if node.snapshot and node.end <= within), None)


class _Empty:
    nbytes = 0

    def split(self, n: int) -> tuple[Span, Span]:
        raise IndexError("a root holds no tokens")


class PrefixTrie:
    """``limit`` bounds the bytes held (None: no bound). Room is made before something is taken in.

    ``max_snapshots`` bounds the snapshots (None: no bound); the one used longest ago goes first.
    """

    def __init__(
        self, limit: int | None, max_snapshots: int | None = None, observer: Observer | None = None
    ) -> None:
        self.limit = limit
        self._observer = observer
        self.max_snapshots = max_snapshots
        self.nbytes = 0
        self.reserved = 0
        """Bytes of state that is on its way here and has its room already."""
        self.n_nodes = 0
        self.n_snapshots = 0
        self.evictions = 0
        self.lacking: Callable[[int], int] = lambda nbytes: 0
        """How many bytes are too few for so many more, whatever ``limit`` allows."""
        self._pinned = 0
        """Bytes of the pinned nodes, which give no room."""
        self._roots: dict[CacheIdentity, Node] = {}
        self._ticks = itertools.count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        """A heap of (last used, serial, node); entries whose node has moved on are skipped."""

    def match(self, identity: CacheIdentity, tokens: Sequence[int]) -> Match:
        """The longest stored prefix of ``tokens``. Changes nothing."""
        root = self._roots.get(identity)
        if root is None:
            return Match((), 0)
        wanted = array("i", tokens)
        nodes, n = [], 0
        node: Node | None = root
        while node is not None and n < len(wanted):
            node = node.children.get(wanted[n])
            if node is None:
                break
            agreed = common_prefix(node.tokens, wanted[n : n + len(node.tokens)])
            nodes.append(node)
            n += agreed
            if agreed < len(node.tokens):
                break
        return Match(tuple(nodes), n)

    def recent(self, identity: CacheIdentity, match: Match, count: int) -> list[Node]:
        """Up to ``count`` leaves below a match, the one used last first."""
        top = match.nodes[-1] if match.nodes else self._roots.get(identity)
        pending = [(0, 0, top)] if top is not None else []
        leaves: list[Node] = []
        while pending and len(leaves) < count:
            node = heapq.heappop(pending)[2]
            if not node.children and node.parent is not None:
                leaves.append(node)
            # no node was used later than its parent, so the first leaf to come up is the latest of all
            for child in heapq.nlargest(count, node.children.values(), key=lambda child: child.last_used):
                heapq.heappush(pending, (-child.last_used, next(self._ticks), child))
        return leaves

    def touch(self, node: Node) -> None:
        """Note that the tokens up to a node's end were used."""
        tick = next(self._ticks)
        for each in upwards(node):
            each.last_used = tick
        self._offer(node)

    def pin(self, node: Node) -> None:
        """Keep a node and all above it until ``unpin``."""
        for each in upwards(node):
            self._pinned += 0 if each.pins else each.nbytes
            each.pins += 1

    def unpin(self, node: Node) -> None:
        for each in upwards(node):
            each.pins -= 1
            self._pinned -= 0 if each.pins else each.nbytes
        self._offer(node)

    def reserve(self, nbytes: int) -> bool:
        """Keep room for state that is on its way, until ``release``. Drops nothing where there is none."""
        if not self._make_room(nbytes):
            return False
        self.reserved += nbytes
        return True

    def release(self, nbytes: int) -> None:
        self.reserved -= nbytes

    def insert(
        self,
        identity: CacheIdentity,
        tokens: Sequence[int],
        nbytes: Callable[[int], int],
        span: Callable[[int, int], Span],
        snapshot: Snapshot | None = None,
    ) -> int:
        """Store the state of ``tokens``: only what is not there is taken in, through ``span(start, end)``.

        ``nbytes(n)`` is the size of ``n`` tokens' span, known before it is made. A state that does not fit
        even alone, or not beside what is pinned, is left out and nothing is dropped for it. Returns the
        number of tokens taken in.
        """
        match = self.match(identity, tokens)
        missing = len(tokens) - match.n
        cost = nbytes(missing) + (snapshot.nbytes if snapshot else 0)
        whole = nbytes(len(tokens)) + (snapshot.nbytes if snapshot else 0)
        if not tokens or not self._fits(whole) or not self._make_room(cost, keep=match):
            return 0
        end = self._end_at(identity, match)
        if missing:
            end = self._append(end, tokens, span(match.n, len(tokens)))
            if self._observer:
                self._observer.stored(identity, end)
        if snapshot is not None and end.snapshot is None:
            end.snapshot = snapshot
            self.n_snapshots += 1
            self.nbytes += snapshot.nbytes
            self._pinned += snapshot.nbytes if end.pins else 0
            self._bound_snapshots(keep=end)
        self.touch(end)
        return missing

    @property
    def evictable(self) -> int:
        """Bytes that are not pinned."""
        return self.nbytes - self._pinned

    def shrink(self, is_enough: Callable[[], bool]) -> None:
        """Drop leaves, the one used longest ago first, until that holds or nothing more may go."""
        while not is_enough() and self._evict_one():
            pass

    def clear(self) -> None:
        """Drop everything that is not pinned."""
        while self._evict_one():
            pass

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before their children."""
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            pending += node.children.values()
            if node.parent is not None:
                yield node

    def check(self) -> None:
        """Raise AssertionError where the books do not add up."""
        total = count = snapshots = pinned = 0
        for node in self.nodes():
            assert node.parent is not None and node.parent.end == node.start, (
                "a node does not follow its parent"
            )
            assert node.parent.children[node.tokens[0]] is node, "a node is not its parent's child"
            assert node.pins >= 0, "a node was unpinned too often"
            total, count = total + node.nbytes, count + 1
            snapshots += node.snapshot is not None
            pinned += node.nbytes if node.pins else 0
        assert (total, count) == (self.nbytes, self.n_nodes), "held bytes or nodes are miscounted"
        assert snapshots == self.n_snapshots, "snapshots are miscounted"
        assert pinned == self._pinned, "pinned bytes are miscounted"
        assert self.reserved >= 0, "more room was released than reserved"
        taken = self.nbytes + self.reserved
        assert self.limit is None or taken <= self.limit, "more bytes are held than allowed"

    # ------------------------------------------------------------ structure

    def _end_at(self, identity: CacheIdentity, match: Match) -> Node:
        """The node that ends exactly where the match does."""
        if not match.nodes:
            if identity not in self._roots:
                self._roots[identity] = Node(array("i"), _Empty(), None, 0)
            return self._roots[identity]
        last = match.nodes[-1]
        return last if last.end == match.n else self._split(last, match.n - last.start)

    def _split(self, node: Node, n: int) -> Node:
        """Cut a node after its first ``n`` tokens; the upper half is returned and holds the pins of both."""
        assert node.parent is not None
        first, rest = node.span.split(n)
        change = first.nbytes + rest.nbytes - node.span.nbytes
        self.nbytes += change
        self._pinned += change if node.pins else 0
        upper = Node(node.tokens[:n], first, node.parent, node.start + n, pins=node.pins)
        upper.last_used = node.last_used
        node.parent.children[node.tokens[0]] = upper
        node.tokens, node.span, node.parent = node.tokens[n:], rest, upper
        upper.children[node.tokens[0]] = node
        self.n_nodes += 1
        if self._observer:
            self._observer.split(upper, node)
        return upper

    def _append(self, parent: Node, tokens: Sequence[int], span: Span) -> Node:
        node = Node(array("i", tokens[parent.end :]), span, parent, len(tokens))
        parent.children[node.tokens[0]] = node
        self.nbytes += span.nbytes
        self.n_nodes += 1
        return node

    # ---------------------------------------------------------------- room

    def _fits(self, nbytes: int) -> bool:
        return self.limit is None or nbytes <= self.limit

    def _make_room(self, nbytes: int, keep: Match | None = None) -> bool:
        """Whether there is room now. Drops nothing where what is pinned or reserved leaves none."""
        node = keep.nodes[-1] if keep and keep.nodes else None
        if node:
            self.pin(node)
        try:
            fits = self.limit is None or self._pinned + self.reserved + nbytes <= self.limit
            # a node that is cut in two is there twice for a while
            copied = node.nbytes if node and keep and node.end != keep.n else 0
            fits = fits and self.lacking(nbytes + copied) <= self.evictable
            while fits and self._lacks(nbytes, copied) and self._evict_one():
                pass
        finally:
            if node:
                self.unpin(node)
        return fits and not self._lacks(nbytes, copied)

    def _lacks(self, nbytes: int, copied: int) -> bool:
        is_full = self.limit is not None and self.nbytes + self.reserved + nbytes > self.limit
        return is_full or self.lacking(nbytes + copied) > 0

    def _bound_snapshots(self, keep: Node) -> None:
        if self.max_snapshots is None:
            return
        holders = [node for node in self.nodes() if node.snapshot and not node.pins and node is not keep]
        holders.sort(key=lambda node: node.last_used)
        for node in holders[: max(0, len(holders) + 1 - self.max_snapshots)]:
            assert node.snapshot is not None
            self.nbytes -= node.snapshot.nbytes
            self.n_snapshots -= 1
            node.snapshot = None

    def _evict_one(self) -> bool:
        """Drop the leaf that was used longest ago; False where nothing may go."""
        while self._leaves:
            tick, _, node = heapq.heappop(self._leaves)
            if self._may_go(node) and tick == node.last_used:
                self._drop(node)
                return True
        return False

    def _may_go(self, node: Node) -> bool:
        parent = node.parent
        return (
            parent is not None
            and not node.children
            and node.pins == 0
            and parent.children.get(node.tokens[0]) is node
        )

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens[0]]
        self.nbytes -= node.nbytes
        self.n_nodes -= 1
        self.n_snapshots -= node.snapshot is not None
        self.evictions += 1
        if parent.parent is None and not parent.children:
            self._roots = {identity: root for identity, root in self._roots.items() if root is not parent}
        self._offer(parent)
        if self._observer:
            self._observer.removed(node)

    def _offer(self, node: Node) -> None:
        """Note that a node may be a leaf that can go."""
        if not self._may_go(node):
            return
        if len(self._leaves) > STALE * self.n_nodes + STALE:
            leaves = (each for each in self.nodes() if self._may_go(each))
            self._leaves = [(each.last_used, next(self._ticks), each) for each in leaves]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (node.last_used, next(self._ticks), node))


def path_tokens(node: Node) -> array[int]:
    """All tokens from the root to the node's end."""
    parts = [each.tokens for each in upwards(node)]
    tokens = array("i")
    for part in reversed(parts):
        tokens.extend(part)
    return tokens


def upwards(node: Node) -> Iterator[Node]:
    """The node and all above it but the root."""
    while node.parent is not None:
        yield node
        node = node.parent
