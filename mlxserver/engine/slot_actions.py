"""Saves, restores and erases a slot's state between steps, on the engine thread."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.mailbox import SlotAction, SlotOutcome
from mlxserver.engine.mover import Mover
from mlxserver.engine.reuse import Reuse
from mlxserver.engine.slot import Slot
from mlxserver.kv.memory import OutOfMemory
from mlxserver.kv.slot_file import SlotFile, SlotFileError, read_slot_file, write_slot_file
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.model import Model

log = logging.getLogger("mlxserver.srv")

NO_STATE = "No available space in KV cache or invalid slot save file"


class SlotActions:
    """What a slot held before is kept in the trie, where there is one."""

    def __init__(
        self, model: Model, config: EngineConfig, space: str, states: SlotStates, mover: Mover, reuse: Reuse
    ) -> None:
        self._model = model
        self._config = config
        self._space = space
        self._states = states
        self._mover = mover
        self._reuse = reuse

    def carry_out(self, action: SlotAction, slot: Slot) -> SlotOutcome:
        """The slot is idle, and empty after an error that was not foreseen. Never raises."""
        begin = time.perf_counter()
        try:
            n_tokens, n_bytes = self._do(action, slot)
        except (SlotFileError, OSError) as error:
            return SlotOutcome(error=str(error))
        except Exception as error:
            log.exception("a slot action failed")
            self._states.drop(slot.id)
            slot.tokens = []
            return SlotOutcome(error=str(error) if isinstance(error, OutOfMemory) else type(error).__name__)
        return SlotOutcome(n_tokens, n_bytes, time.perf_counter() - begin)

    def _do(self, action: SlotAction, slot: Slot) -> tuple[int, int]:
        if action.kind == "erase":
            n_erased = len(slot.tokens)
            self._empty(slot)
            return n_erased, 0
        assert action.path is not None
        if action.kind == "save":
            return len(slot.tokens), self._save(slot, action.path)
        if not action.path.exists():  # as llama-server does: a slot to be filled from nothing is empty
            self._keep(slot)
            self._empty(slot)
            raise SlotFileError(NO_STATE)
        return self._restore(slot, self._read(action.path)), action.path.stat().st_size

    def _keep(self, slot: Slot) -> None:
        for move in self._reuse.keep(slot):
            self._mover.carry_out(move)

    def _empty(self, slot: Slot) -> None:
        self._states.truncate(slot.id, 0)
        slot.tokens = []

    def _save(self, slot: Slot, path: Path) -> int:
        """Write the state of the slot's tokens; the bytes written."""
        states, n = self._states, len(slot.tokens)
        self._states.budget.claim(n * self._states.bytes_per_token, f"a copy of {n} tokens' state")
        if not states.is_plain:
            states.truncate(slot.id, n)
        span, snapshot = states.read_span(slot.id, 0, n), states.read_snapshot(slot.id)
        tokens, exact_until = tuple(slot.tokens), slot.exact_until
        return write_slot_file(path, self._space, tokens, slot.identity, span, snapshot, exact_until)

    def _read(self, path: Path) -> SlotFile:
        """A file that fits this model and a slot. Raises SlotFileError."""
        self._states.budget.claim(path.stat().st_size, "reading the slot file")
        found = read_slot_file(path, self._space)
        if len(found.tokens) > self._config.n_ctx_slot:
            raise SlotFileError("Restored prompt does not fit in the slot context")
        if not all(0 <= token < self._model.info.n_vocab for token in found.tokens):
            raise SlotFileError("Invalid tokens in slot save file")
        return found

    def _restore(self, slot: Slot, found: SlotFile) -> int:
        """Replace what the slot holds. A state that does not fit raises SlotFileError and changes nothing."""
        try:
            snapshot = self._states.snapshot_of(found.states)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SlotFileError(NO_STATE) from error
        if found.tokens and not self._states.fits(found.span, len(found.tokens)):
            raise SlotFileError(NO_STATE)
        self._keep(slot)
        self._states.truncate(slot.id, 0)
        if found.tokens:  # a slot that was saved before the first token of all has no buffers
            self._states.write_span(slot.id, 0, found.span)
        if snapshot is not None:
            self._states.write_snapshot(slot.id, len(found.tokens), snapshot)
        slot.tokens, slot.identity = list(found.tokens), found.identity
        slot.exact_until = found.exact_until
        return len(found.tokens)
