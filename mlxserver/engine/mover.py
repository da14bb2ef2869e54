"""Moves state between the slots and the trie."""

from __future__ import annotations

from mlxserver.engine.plan import Compact, Copy, Cut, Discard, Grow, Load, Move, Save
from mlxserver.engine.write_behind import WriteBehind
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.spans import KVSnapshot, KVSpan
from mlxserver.kv.trie import Node, PrefixTrie, upwards


class Mover:
    """Everything it brings or stores is state of the named tokens; nothing is evaluated for it."""

    def __init__(
        self, states: SlotStates, trie: PrefixTrie | None, writes: WriteBehind | None = None
    ) -> None:
        self._states = states
        self._trie = trie
        self._writes = writes

    def carry_out(self, move: Move) -> None:
        match move:
            case Save():
                self._save(move)
            case Cut(slot=slot, n=n):
                self._states.truncate(slot, n)
            case Load():
                self._load(move)
            case Copy(slot=slot, source=source, start=start, end=end, at=at):
                self._claim_copy(end - start)
                self._states.copy(source, slot, start, end, at)
            case Compact(slot=slot):
                self._states.compact(slot)
            case Grow(slot=slot, n=n, seconds=seconds):
                self._states.grow(slot, n, seconds)
            case Discard(slot=slot, n_keep=n_keep, n_discard=n_discard):
                self._claim_copy(self._states.length(slot) - n_keep - n_discard)
                self._states.discard(slot, n_keep, n_discard)

    def give_up(self, move: Move) -> None:
        """The move is not carried out, or was not to its end."""
        if isinstance(move, Load) and self._trie is not None:
            self._trie.unpin(move.node)

    def _save(self, move: Save) -> None:
        assert self._trie is not None
        states = self._states
        if not states.is_plain:
            if not states.can_truncate(move.slot, len(move.tokens)):
                return  # the slot has gone on, and what it holds is no longer the state of these tokens
            states.truncate(move.slot, len(move.tokens))
        snapshot = states.read_snapshot(move.slot)
        self._trie.insert(
            move.identity,
            move.tokens,
            lambda n: n * states.bytes_per_token,
            lambda start, end: states.read_span(move.slot, start, end),
            snapshot,
        )
        if self._writes is not None:
            self._writes.saved(move.slot, move.identity, move.tokens, snapshot)

    def _load(self, move: Load) -> None:
        assert self._trie is not None
        self._claim(move)
        for start, span in _spans(move.node, move.start, move.end):
            at = start - move.start + move.at
            self._states.write_span(move.slot, at, self._states.moved(span, start, at))
        if isinstance(move.node.snapshot, KVSnapshot):
            self._states.write_snapshot(move.slot, move.end, move.node.snapshot)
        self._trie.touch(move.node)
        self._trie.unpin(move.node)

    def _claim_copy(self, n: int) -> None:
        """Tokens are read as they are, and may then be made anew for other positions, layer by layer."""
        nbytes = 2 * n * self._states.bytes_per_token
        self._states.budget.claim(nbytes, f"a copy of {n} tokens' state")

    def _claim(self, move: Load) -> None:
        """Parts of spans, and spans for other positions, are copied before they are written."""
        longest = max((part.span.nbytes for part in upwards(move.node) if part.end > move.start), default=0)
        self._states.budget.claim(longest, f"taking over {move.end - move.start} tokens")


def _spans(node: Node, start: int, end: int) -> list[tuple[int, KVSpan]]:
    """The parts of ``[start, end)`` on the way to ``node``, in order, each with its first position."""
    parts: list[tuple[int, KVSpan]] = []
    while node.parent is not None and node.end > start:
        assert isinstance(node.span, KVSpan)
        lo, hi = max(start, node.start), min(end, node.end)
        if lo < hi:
            whole = (lo, hi) == (node.start, node.end)
            span = node.span if whole else node.span.part(slice(lo - node.start, hi - node.start))
            parts.append((lo, span))
        node = node.parent
    return parts[::-1]
