"""What of a prompt was evaluated at other positions, where a request allows its use (``n_cache_reuse``)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mlxserver.engine.chunks import Run, find_runs
from mlxserver.engine.plan import Copy, Load, Move
from mlxserver.engine.slot import Slot
from mlxserver.engine.task import Task
from mlxserver.kv.prefix import common_prefix
from mlxserver.kv.trie import Node, PrefixTrie, path_tokens

SEARCHED = 8
"""Stored sequences of each kind, those used last, that are searched for a prompt's tokens."""


@dataclass(frozen=True, slots=True)
class Known:
    """An evaluated sequence, held by a slot or stored on the way to a node."""

    tokens: array[int]
    source: Slot | None = None
    node: Node | None = None
    is_exact: bool = True
    """Nothing of it was moved here from other positions."""


@dataclass(frozen=True, slots=True)
class Extension:
    """Runs of one known sequence that go on where the prompt's exact prefix ends."""

    runs: tuple[Run, ...] = ()
    known: Known = field(default_factory=lambda: Known(array("i")))

    @property
    def n(self) -> int:
        """Tokens of the prompt up to the last run's end."""
        return self.runs[-1].at + self.runs[-1].end - self.runs[-1].start if self.runs else 0

    def continues(self, slot: Slot) -> bool:
        """Whether all that the slot holds stays where it is."""
        if not self.runs or self.known.source is not slot:
            return False
        first = self.runs[0]
        return first.start == first.at and first.end >= len(slot.tokens)

    def moves(self, slot: Slot, trie: PrefixTrie | None) -> list[Move]:
        """A run that stands in the slot where it belongs needs none."""
        of, known = (slot.id, slot.task_id), self.known
        moves: list[Move] = []
        for run in self.runs:
            if known.node is not None and trie is not None:
                trie.pin(known.node)
                moves.append(Load(*of, known.node, run.start, run.end, run.at))
            elif known.source is not None and (known.source is not slot or run.start != run.at):
                moves.append(Copy(*of, known.source.id, run.start, run.end, run.at))
        return moves


class ChunkReuse:
    """Looks in the slot itself, in the other slots and in the trie; without a trie in the slot alone."""

    def __init__(self, slots: Sequence[Slot], trie: PrefixTrie | None) -> None:
        self._slots = slots
        self._trie = trie

    def extend(self, slot: Slot, task: Task, n: int) -> Extension:
        """What reaches farthest beyond the prompt's first ``n`` tokens, which are found exactly already.

        Of equals the original keys are taken, so that moved ones are seldom moved again.
        """
        new = array("i", task.tokens[: task.n_reusable + 1])
        found = [
            Extension(_runs(known, known.source is slot, new, n, task.n_cache_reuse), known)
            for known in self._known(slot, task)
        ]
        best = max(found, key=lambda each: (each.n, each.known.is_exact), default=Extension())
        return _without_last(best, len(new)) if best.n > n else Extension()

    def _known(self, slot: Slot, task: Task) -> Iterator[Known]:
        for other in [slot] if self._trie is None else self._slots:
            if other.tokens and other.identity == task.identity:
                tokens = other.tokens[: other.n_exact] if other.is_invoked else other.tokens
                yield Known(array("i", tokens), other, is_exact=other.exact_until is None)
        if self._trie is None:
            return
        for is_shifted in (False, True):
            identity = replace(task.identity, is_shifted=is_shifted)
            match = self._trie.match(identity, task.tokens)
            for node in self._trie.recent(identity, match, SEARCHED):
                yield Known(path_tokens(node), node=node, is_exact=not is_shifted)


def _runs(known: Known, is_own: bool, new: array[int], n: int, shortest: int) -> tuple[Run, ...]:
    agreed = common_prefix(known.tokens, new)
    if agreed > n:  # the same positions, but not exact
        return (Run(n, agreed, n), *find_runs(known.tokens, new, agreed, agreed, shortest))
    # in the slot itself the first n tokens give way to the prompt's
    return tuple(find_runs(known.tokens, new, n if is_own else agreed, n, shortest))


def _without_last(extension: Extension, n_prompt: int) -> Extension:
    """At least one token of a prompt is evaluated."""
    if extension.n < n_prompt:
        return extension
    *runs, last = extension.runs
    if last.end - last.start > 1:
        runs.append(replace(last, end=last.end - 1))
    return replace(extension, runs=tuple(runs))
