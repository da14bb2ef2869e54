"""The engine's parts around a model, driven by hand: what the scheduler would plan is done at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import mlx.core as mx
import numpy as np

from mlxserver.engine.batch_check import rows_agree
from mlxserver.engine.cache_types import cache_types
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.context_shift import shift_of
from mlxserver.engine.mailbox import SlotAction
from mlxserver.engine.mover import Mover
from mlxserver.engine.plan import Cut, Discard, Move
from mlxserver.engine.reuse import Reuse
from mlxserver.engine.slot import Slot
from mlxserver.engine.slot_actions import SlotActions
from mlxserver.engine.state_space import state_space
from mlxserver.engine.task import Task
from mlxserver.kv.slot_states import SlotStates
from mlxserver.kv.trie import PrefixTrie
from mlxserver.models.caches import cache_maker
from mlxserver.models.model import Model
from mlxserver.models.rotary import find_rotations
from mlxserver.validate.metrics import Array, Rows


class PathError(Exception):
    """A path did not do what it is to show; the line says what it did."""


class Rig:
    """Slots, a trie (none with ``cache_ram`` 0) and what moves state between them.

    Raises ModelError where the model cannot hold its state in the KV types.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self._module = model.module
        self._make_cache = cache_maker(model.module, config.swa_full)
        self.types = cache_types(model.module, self._make_cache, config)
        n_train = model.info.n_ctx_train
        self.states = SlotStates(
            self._make_cache, config.n_slots, *self.types, lambda: find_rotations(model.module, n_train)
        )
        trie = PrefixTrie(None) if config.cache_ram else None
        self.slots = [Slot(index, config.n_ctx_slot) for index in range(config.n_slots)]
        self._reuse = Reuse(self.states, self.slots, trie)
        self._mover = Mover(self.states, trie)
        self._actions = SlotActions(
            model, config, state_space(model, config), self.states, self._mover, self._reuse
        )
        self._n_ubatch = config.n_ubatch

    @property
    def cannot_batch(self) -> str:
        """Why slots decode one by one; empty where they need not."""
        if self.states.alone:
            return f"{', '.join(sorted({*self.states.alone}))} cannot be batched"
        return "" if rows_agree(self._module, self._make_cache) else "it gives other results in a batch"

    def read(self, slot: Slot, tokens: Sequence[int], chunk: int = 0) -> Iterator[Rows]:
        """Evaluate tokens behind what the slot holds, ``chunk`` at a time (0: as the server does)."""
        size = chunk or self._n_ubatch
        for first in range(0, len(tokens), size):
            part, start = tokens[first : first + size], len(slot.tokens)
            logits = self._module(mx.array([part]), cache=self.states.prompt_chunk(slot.id, len(part)))
            slot.tokens.extend(part)
            yield Rows(start, self._evaluated(logits[0]))

    def fill(self, slot: Slot, tokens: Sequence[int]) -> None:
        """As ``read``, for the state alone."""
        for _ in self.read(slot, tokens):
            pass

    def decode(self, tokens: Mapping[int, int]) -> dict[int, Rows]:
        """One token of each of the slots (id: token) in one forward pass."""
        order = self.states.arrange(list(tokens))
        inputs = mx.array([[tokens[slot]] for slot in order])
        logits = self._evaluated(self._module(inputs, cache=self.states.decode(order))[:, -1])
        found = {}
        for row, slot in zip(logits, order, strict=True):
            found[slot] = Rows(len(self.slots[slot].tokens), row[None])
            self.slots[slot].tokens.append(tokens[slot])
        return found

    def keep(self, slot: Slot) -> None:
        """Store what the slot holds in the trie."""
        self._carry_out(self._reuse.keep(slot))

    def empty(self, slot: Slot) -> None:
        self._carry_out([Cut(slot.id, slot.task_id, 0)])
        slot.tokens, slot.exact_until = [], None

    def take_over(self, slot: Slot, prompt: Sequence[int], n_expected: int, n_cache_reuse: int = 0) -> None:
        """Bring into the slot what is known of a prompt.

        Raises PathError where that is not ``n_expected`` tokens.
        """
        task = Task(0, tuple(prompt), n_cache_reuse=n_cache_reuse)
        taken = self._reuse.take_over(slot, task)
        self._carry_out(taken.moves)
        slot.tokens, slot.exact_until = list(prompt[: taken.n]), taken.exact_until
        if taken.n != n_expected:
            raise PathError(f"{taken.n} tokens were reused, not {n_expected}")

    def shift(self, slot: Slot, n_keep: int, n_discard: int) -> None:
        """A context shift, as if the slot's context were full."""
        n_tokens = len(slot.tokens)
        task = Task(0, tuple(slot.tokens), n_keep=n_keep, n_discard=n_discard)
        shift = shift_of(task, n_tokens, n_ctx=n_tokens + 1, adds_bos=False, n_launched=0)
        self._carry_out([Discard(slot.id, slot.task_id, shift.n_keep, shift.n_discard)])
        slot.discard(shift)

    def act(self, kind: Literal["save", "restore"], slot: Slot, path: Path) -> None:
        """Raises PathError where the slot's file could not be written or read."""
        outcome = self._actions.carry_out(SlotAction(kind, slot.id, path, lambda _: None), slot)
        if outcome.error:
            raise PathError(outcome.error)

    def first_layer(self, slot: int) -> tuple[Array, Array]:
        """The keys and values of the first layer, which is to be plain: they depend on no context."""
        keys, values = self.states.read_span(slot, 0, self.states.length(slot)).layers[0]
        key_type, value_type = self.types
        decoded = key_type.decode(keys, mx.float32), value_type.decode(values, mx.float32)
        return np.array(decoded[0]), np.array(decoded[1])

    def _evaluated(self, logits: mx.array) -> Array:
        wide = logits.astype(mx.float32)
        mx.eval(wide, self.states.arrays())
        return np.array(wide)

    def _carry_out(self, moves: Sequence[Move]) -> None:
        for move in moves:
            self._mover.carry_out(move)
