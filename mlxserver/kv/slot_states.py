"""The state of all slots over all layers: which row a slot has, how long it is, what can be done to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from mlxserver.kv.batched_state import BatchedState
from mlxserver.kv.buffer_room import BufferRoom
from mlxserver.kv.kv_type import KVType, Parts
from mlxserver.kv.memory import MemoryBudget
from mlxserver.kv.ragged_block import RaggedBlock, RaggedView
from mlxserver.kv.shifter import Shifter
from mlxserver.kv.slot_kv import (
    BlockShape,
    BlockView,
    RowBlock,
    RowSpan,
    RowView,
    SlotKV,
    grown_columns,
)
from mlxserver.kv.slot_rows import SlotRows
from mlxserver.kv.spans import KVSnapshot, KVSpan, bytes_per_token
from mlxserver.models.rotary import Rotation

Layer = SlotKV | BatchedState
Buffers = list[tuple[Parts, Parts]]
"""Of keys and of values, one pair a plain layer."""
FixedStep = Callable[[mx.array, mx.array, Buffers], tuple[mx.array, Buffers]]
"""Tokens (B,), their positions (B,) and all buffers -> logits (B, n_vocab) and the buffers after it."""


class SlotStates:
    """``make_cache`` is the model's: it gives the empty mlx-lm caches of one sequence, one a layer.
    ``find_rotations`` tells how the keys of each layer depend on their position.

    Slots are named by their number; rows are where their state lies. The rows of the slots that decode
    are kept next to each other, so that a step reads one slice of every buffer.
    """

    def __init__(
        self,
        make_cache: Callable[[], list[Any]],
        n_slots: int,
        key_type: KVType,
        value_type: KVType,
        find_rotations: Callable[[], list[Rotation | None]] = list,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.budget = budget or MemoryBudget(None)
        caches = make_cache()
        self._layers = [
            _layer(cache, index, make_cache, key_type, value_type) for index, cache in enumerate(caches)
        ]
        self._plain = [layer for layer in self._layers if isinstance(layer, SlotKV)]
        self._uncut = [layer for layer in self._layers if isinstance(layer, BatchedState)]
        self.uncut = [
            type(cache).__name__
            for cache, layer in zip(caches, self._layers, strict=True)
            if isinstance(layer, BatchedState)
        ]
        """Names of the cache classes of the layers that are no plain attention, one a layer."""
        self._shifter = Shifter(find_rotations, self.uncut, key_type, value_type)
        self._rows = SlotRows(n_slots)
        self._room = BufferRoom(self._plain, self.budget)
        self._length = [0] * n_slots
        self.alone = [name for cache in caches if (name := _cannot_batch(cache))]
        """Names of cache classes that mlx-lm cannot batch; such a model decodes its slots one by one."""

    def length(self, slot: int) -> int:
        """Tokens whose state the slot holds."""
        return self._length[slot]

    @property
    def is_plain(self) -> bool:
        """Every layer is plain attention: any slot can be cut at any position."""
        return not self._uncut

    @property
    def has_spans(self) -> bool:
        """Whether some layer is plain attention."""
        return bool(self._plain)

    @property
    def cannot_shift(self) -> str:
        """Why no state can be moved to other positions; empty where it can."""
        return self._shifter.reason

    def can_truncate(self, slot: int, n: int) -> bool:
        """Whether the slot's state can be cut back to exactly its first ``n`` tokens."""
        if n in (0, self._length[slot]) or self.is_plain:
            return True
        return all(layer.can_trim(self._rows.of(slot)) for layer in self._uncut)

    def truncate(self, slot: int, n: int) -> None:
        """Keep the first ``n`` tokens.

        Raises ValueError where the slot holds fewer, or where ``can_truncate`` is false.
        """
        self._require(slot, n)
        drop = self._length[slot] - n
        if drop == 0:
            return
        if not self.can_truncate(slot, n):
            raise ValueError(
                f"the state of slot {slot} cannot be cut from {self._length[slot]} to {n} tokens"
            )
        for layer in self._uncut:
            if n == 0:
                layer.clear(self._rows.of(slot))
            else:
                layer.trim(self._rows.of(slot), drop)
        self._length[slot] = n

    def _require(self, slot: int, n: int) -> None:
        """Raises ValueError where the slot holds less: a step that was to bring the tokens has failed."""
        if n > self._length[slot]:
            raise ValueError(f"slot {slot} holds {self._length[slot]} tokens, not {n}")

    def drop(self, slot: int) -> None:
        """Forget everything about a slot whose state is not to be trusted."""
        for layer in self._uncut:
            layer.drop(self._rows.of(slot))
        self._length[slot] = 0

    @property
    def bytes_per_token(self) -> int:
        """Of the plain layers together; 0 before the first token."""
        return bytes_per_token([array for layer in self._plain for array in layer.arrays])

    @property
    def widths(self) -> list[tuple[int, int]]:
        """(of keys, of values) of the first part of each plain layer that has seen a token."""
        pairs = ((layer.keys, layer.values) for layer in self._plain if layer.keys)
        return [(keys[0].shape[3], values[0].shape[3]) for keys, values in pairs]

    def read_span(self, slot: int, start: int, end: int) -> KVSpan:
        """A copy of the plain layers' state of the slot's tokens ``[start, end)``.

        Raises ValueError where the slot does not hold them: a step that was to evaluate them has failed.
        """
        self._require(slot, end)
        layers = tuple(layer.read(self._rows.of(slot), start, end) for layer in self._plain)
        mx.eval(layers)  # a pending view of a buffer would force the next write to copy all of it
        return KVSpan(layers)

    def write_span(self, slot: int, start: int, span: KVSpan) -> None:
        """Put a span behind the slot's first ``start`` tokens."""
        if not self._plain:
            return
        self._require(slot, start)
        self._room.make(self._rows.of(slot) + 1, start + span.n)
        for layer, (keys, values) in zip(self._plain, span.layers, strict=True):
            layer.write(self._rows.of(slot), start, keys, values)
        self._length[slot] = max(self._length[slot], start + span.n)

    def read_snapshot(self, slot: int) -> KVSnapshot | None:
        """The other layers' state after the slot's last token; None for a model that has none."""
        if self.is_plain:
            return None
        snapshot = KVSnapshot(tuple(layer.read(self._rows.of(slot)) for layer in self._uncut))
        mx.eval([array for layer in self._uncut for array in layer.arrays])
        return snapshot

    def write_snapshot(self, slot: int, n: int, snapshot: KVSnapshot) -> None:
        """Make the slot's other layers what they were after ``n`` tokens."""
        for layer, cache in zip(self._uncut, snapshot.caches, strict=True):
            layer.write(self._rows.of(slot), cache)
        self._length[slot] = n

    def snapshot_of(self, states: Sequence[Any]) -> KVSnapshot | None:
        """Caches of this model in the given ``cache.state``s; raises where they are not of its layers."""
        if len(states) != len(self._uncut):
            raise ValueError(f"{len(states)} states for {len(self._uncut)} layers")
        caches = []
        for layer, state in zip(self._uncut, states, strict=True):
            caches.append(layer.fresh(state))
        return KVSnapshot(tuple(caches)) if caches else None

    def fits(self, span: KVSpan, n: int) -> bool:
        """Whether a span holds ``n`` tokens of every plain layer in the shapes and types of the buffers."""
        return len(span.layers) == len(self._plain) and all(
            layer.fits(keys, values, n)
            for layer, (keys, values) in zip(self._plain, span.layers, strict=True)
        )

    def moved(self, span: KVSpan, start: int, to: int) -> KVSpan:
        """A span whose tokens were at the positions from ``start`` on, for those from ``to`` on."""
        return self._shifter.moved(span, start, to)

    def discard(self, slot: int, n_keep: int, n_discard: int) -> None:
        """Drop ``n_discard`` tokens behind the first ``n_keep``; those behind them move up."""
        start, end = n_keep + n_discard, self._length[slot]
        self.copy(slot, slot, start, end, n_keep)
        self.truncate(slot, end - n_discard)

    def copy(self, source: int, target: int, start: int, end: int, at: int) -> None:
        """Give slot ``target`` the tokens ``[start, end)`` of ``source``, at the positions from ``at`` on.

        Layers that cannot be cut are copied whole: ``end`` is the source's length then.
        """
        if self._uncut and end != self._length[source]:
            raise ValueError(f"slot {source} is at {self._length[source]} tokens, not at {end}")
        if end > start and self._plain:
            self.write_span(target, at, self.moved(self.read_span(source, start, end), start, at))
        for layer in self._uncut:
            layer.write(self._rows.of(target), layer.read(self._rows.of(source)))
            self._length[target] = end

    def prompt_chunk(self, slot: int, n_new: int, finite: bool = False, n_expected: int = 0) -> list[Any]:
        """One cache a layer for ``n_new`` tokens of this slot alone; the slot is that much longer then.

        ``finite``: the evaluation may overflow, and what is held of it is to be finite all the same.
        ``n_expected``: tokens that the slot will soon hold, for which there is to be room at once.
        """
        span = RowSpan(self._rows.of(slot), self._length[slot], n_new, finite)
        self._room.make(span.row + 1, max(span.end, n_expected))
        self._length[slot] += n_new
        return [
            RowView(layer, span) if isinstance(layer, SlotKV) else layer.one(span.row)
            for layer in self._layers
        ]

    def ragged(
        self,
        slots: Sequence[int],
        chunks: Sequence[tuple[int, int]],
        n_expected: int = 0,
        finite: bool = False,
        n_read: int | None = None,
    ) -> list[RaggedView]:
        """One cache a layer of a plain model for tokens (N, 1): one of each of ``slots``, in the order of
        ``arrange``, then ``n`` of each ``(slot, n)`` of ``chunks``. Logits are made of the first ``n_read``.

        A slot may be in both: its one token is behind the others.
        """
        spans = tuple(RowSpan(self._rows.of(slot), self._length[slot], n, finite) for slot, n in chunks)
        ends = {slot: self._length[slot] + n for slot, n in chunks}
        rows = tuple(self._rows.of(slot) for slot in slots)
        lengths = [ends.get(slot, self._length[slot]) for slot in slots]
        block = RaggedBlock(RowBlock.of(rows, lengths, finite) if slots else None, spans)
        self._room.make(block.n_rows, max(block.end, n_expected))
        for slot, n in [*ends.items(), *((slot, n + 1) for slot, n in zip(slots, lengths, strict=True))]:
            self._length[slot] = n
        return [RaggedView(layer, block, n_read) for layer in self._plain]

    def decode(self, slots: Sequence[int], finite: bool = False) -> list[Any]:
        """One cache a layer for one token of each of ``slots``, in the order of ``arrange``."""
        if len(slots) == 1:
            return self.prompt_chunk(slots[0], 1, finite)
        rows = tuple(self._rows.of(slot) for slot in slots)
        block = RowBlock.of(rows, [self._length[slot] for slot in slots], finite)
        self._room.make(block.hi, block.end)
        caches = [
            BlockView(layer, block) if isinstance(layer, SlotKV) else layer.many(rows)
            for layer in self._layers
        ]
        for slot in slots:  # only now: an error before leaves everything as it was
            self._length[slot] += 1
        return caches

    def block_shape(self, slots: Sequence[int]) -> BlockShape | None:
        """Of one token of each of ``slots``, in the order of ``arrange``, by ``decode_fixed``.

        None where the model's state does not lie in buffers of one shape, or nothing does yet.
        """
        if self._uncut or not all(layer.keys for layer in self._plain):
            return None
        rows = [self._rows.of(slot) for slot in slots]
        end = max(self._length[slot] for slot in slots) + 1
        self._room.make(rows[-1] + 1, end)
        if not self._room.is_even:
            return None
        return BlockShape(rows[0], rows[-1] + 1, grown_columns(0, end), *self._plain[0].shape)

    def decode_fixed(self, slots: Sequence[int], run: FixedStep, tokens: mx.array) -> mx.array:
        """As ``decode`` and the forward pass in one, by a graph made for the slots' ``block_shape``.

        ``run(tokens, offsets, buffers)`` gives the logits and the buffers that take the place of those.
        """
        offsets = mx.array([self._length[slot] for slot in slots], dtype=mx.int32)
        for slot in slots:
            self._length[slot] += 1
        logits, buffers = run(tokens, offsets, [(layer.keys, layer.values) for layer in self._plain])
        for layer, (keys, values) in zip(self._plain, buffers, strict=True):
            layer.keys, layer.values = tuple(keys), tuple(values)
        return logits

    def fixed_layers(self, buffers: Buffers) -> list[SlotKV]:
        """The layers with other arrays in them, for making such a graph."""
        layers = []
        for layer, (keys, values) in zip(self._plain, buffers, strict=True):
            other = SlotKV(layer.key_type, layer.value_type)
            other.keys, other.values = tuple(keys), tuple(values)
            layers.append(other)
        return layers

    def layer_sizes(self) -> list[tuple[int, int]]:
        """(bytes as held, numbers as read) of a token in each plain layer."""
        return [(layer.bytes_per_token, layer.numbers_per_token) for layer in self._plain]

    def uncut_sizes(self, slot: int) -> tuple[int, list[tuple[int, int]]]:
        """What a slot that holds something has beside them (``BatchedState.sizes``), of all layers."""
        sizes = [layer.sizes(self._rows.of(slot)) for layer in self._uncut]
        return sum(fixed for fixed, _ in sizes), [each for _, growing in sizes for each in growing]

    def growth(self, wanted: dict[int, int]) -> int:
        """Bytes that the buffers need more, for a while at least, for slots of so many tokens."""
        if not wanted:
            return 0
        return self._room.growth(max(map(self._rows.of, wanted)) + 1, max(wanted.values()))

    def could_hold(self, wanted: dict[int, int]) -> bool:
        """Whether slots can get so many tokens if stored state gives room. Changes nothing."""
        costs = self.budget.costs
        new = sum(costs.slot(n) for slot, n in wanted.items() if self._length[slot] == 0)
        return self.budget.could_have(self.growth(wanted) + new)

    def expect(self, slot: int, n: int) -> None:
        """Have room for so many tokens of a slot. Raises OutOfMemory, changing nothing, without any."""
        if self._length[slot] == 0 and (new := self.budget.costs.slot(n)):
            self.budget.claim(new, f"the state of {n} tokens")
        self._room.make(self._rows.of(slot) + 1, n)

    def is_far_from(self, slot: int, n: int) -> bool:
        """Whether making room for so many tokens of a slot at once would be felt."""
        return self._room.takes_long(self._rows.of(slot) + 1, n)

    def grow(self, slot: int, n: int, seconds: float) -> None:
        """Have more room for ``n`` tokens of a slot, made for about so long. Raises OutOfMemory."""
        self._room.make(self._rows.of(slot) + 1, n, seconds)

    def compact(self, slot: int) -> None:
        """Give back the room that no slot's tokens take; ``slot`` is empty and is to be filled."""
        if self.is_plain and self._length[slot] == 0:
            self._rows.exchange(slot, self._rows.first(lambda each: self._length[each] == 0))
        n_rows = max((self._rows.of(each) + 1 for each, n in enumerate(self._length) if n), default=1)
        self._room.shrink(n_rows, max(self._length))

    @property
    def can_undo(self) -> bool:
        """Whether ``undo`` puts the state of every layer back."""
        return all(layer.can_undo for layer in self._uncut)

    def undo(self, lengths: dict[int, int]) -> None:
        """Take back a ``decode`` or ``ragged`` whose forward pass failed: slot -> tokens before it.

        Nothing where it failed before it had given what it gives.
        """
        if all(self._length[slot] == n for slot, n in lengths.items()):
            return
        for slot, n in lengths.items():
            self._length[slot] = n
        for layer in self._uncut:
            layer.undo()

    def arrange(self, slots: Sequence[int]) -> list[int]:
        """Move rows so that those of ``slots`` are neighbours; the slots in the order of their rows."""
        return self._rows.arrange(slots, self._swap)

    def arrange_passes(self, passes: Sequence[Sequence[int]]) -> list[list[int]]:
        """As ``arrange``, for one set of slots or for two that are decoded one after the other."""
        return self._rows.arrange_passes(passes, self._swap)

    def arrays(self) -> list[mx.array]:
        """Everything that must be evaluated for the state to stand on its own."""
        return [array for layer in self._layers for array in layer.arrays]

    def _swap(self, a: int, b: int) -> None:
        """Exchange what two rows hold."""
        n_a, n_b = (self._length[self._rows.slot(row)] for row in (a, b))
        for layer in self._layers:
            if isinstance(layer, SlotKV):
                layer.swap(a, b, n_a, n_b)
            else:
                layer.swap(a, b)


def _layer(
    cache: Any, index: int, make_cache: Callable[[], list[Any]], key_type: KVType, value_type: KVType
) -> Layer:
    from mlx_lm.models.cache import KVCache

    if type(cache) is KVCache:
        return SlotKV(key_type, value_type)
    return BatchedState(lambda: make_cache()[index])


def _cannot_batch(cache: Any) -> str | None:
    from mlx_lm.models.cache import CacheList

    if isinstance(cache, CacheList):
        return next((name for part in cache.caches if (name := _cannot_batch(part))), None)
    return None if hasattr(cache, "merge") else type(cache).__name__
