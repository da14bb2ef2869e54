"""Decode steps as compiled graphs: built once for a shape, run as often as it lasts.

Building a step in Python and sending off its many small operations costs as much time as a small model
computes; ``mx.compile`` keeps the graph and joins small operations. Only models whose state lies in plain
buffers have a shape that lasts: 64 tokens, while the same slots decode.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxserver.kv.memory import OutOfMemory
from mlxserver.kv.slot_kv import BlockShape, BlockView, RowBlock
from mlxserver.kv.slot_states import Buffers, FixedStep, SlotStates

log = logging.getLogger("mlxserver.srv")

WORTH = 8
"""Steps of a shape that are made the ordinary way first: making a graph takes as long as two of them, and
streams come and go."""
KEPT = 64
"""Shapes that are remembered, the latest ones."""


class CompiledSteps:
    """The graphs of a model's decode steps without adapters."""

    def __init__(self, module: Any, states: SlotStates, worth: int = WORTH) -> None:
        self._module = module
        self._states = states
        self._worth = worth
        self._is_off = False
        self._graphs: OrderedDict[BlockShape, FixedStep] = OrderedDict()
        self._n_wanted: OrderedDict[BlockShape, int] = OrderedDict()

    def logits(self, tokens: mx.array, slots: Sequence[int], may_make: bool = True) -> mx.array | None:
        """(B, n_vocab) of one token (B,) of each slot, as ``SlotStates.decode`` and the module give it.

        None, and nothing is done, where the step is not worth a graph or cannot have one, or where there is
        none yet and none may be made. Raises OutOfMemory.
        """
        if self._is_off:
            return None
        lengths = {slot: self._states.length(slot) for slot in slots}
        try:
            return self.attempt(tokens, slots, may_make)
        except OutOfMemory:
            raise  # of the buffers, before anything was done
        except Exception:
            log.exception("no decode step is compiled from here on")
            self._states.undo(lengths)
            self._is_off = True
            return None

    def attempt(self, tokens: mx.array, slots: Sequence[int], may_make: bool = True) -> mx.array | None:
        """As ``logits``; raises what goes wrong while the graph is made, with lengths that do not hold."""
        shape = self._states.block_shape(slots)
        run = None if shape is None else self._graph(shape, may_make)
        return None if run is None else self._states.decode_fixed(slots, run, tokens)

    def _graph(self, shape: BlockShape, may_make: bool) -> FixedStep | None:
        if shape in self._graphs:
            self._graphs.move_to_end(shape)
            return self._graphs[shape]
        n = self._n_wanted.pop(shape, 0)
        if n < self._worth or not may_make:
            _remember(self._n_wanted, shape, n + 1)
            return None
        run = mx.compile(lambda *inputs: self._step(shape, *inputs))
        _remember(self._graphs, shape, run)
        return run

    def _step(
        self, shape: BlockShape, tokens: mx.array, offsets: mx.array, buffers: Buffers
    ) -> tuple[mx.array, Buffers]:
        layers = self._states.fixed_layers(buffers)
        block = RowBlock(shape.lo, shape.hi, offsets, shape.end)
        caches = [BlockView(layer, block) for layer in layers]
        logits = self._module(tokens[:, None], cache=caches)[:, -1]
        return logits, [(layer.keys, layer.values) for layer in layers]


def _remember(known: OrderedDict[BlockShape, Any], shape: BlockShape, value: Any) -> None:
    known[shape] = value
    if len(known) > KEPT:
        known.popitem(last=False)
