"""Which prompt tokens a step evaluates, and where state that cannot be cut is stored on the way."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.checkpoints import is_checkpoint, next_checkpoint
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.pace import Pace, smallest_chunk
from mlxserver.engine.plan import Chunk, Move
from mlxserver.engine.reuse import Reuse, States
from mlxserver.engine.slot import Slot, SlotState

MOST_EXPECTED = 128
"""Tokens that a request is believed to generate; room for them is made with that for its prompt."""


class Prompts:
    """The prompt that began first goes first; the time for prompts is shared between those that wait."""

    def __init__(
        self, config: EngineConfig, states: States, slots: Sequence[Slot], reuse: Reuse, pace: Pace
    ) -> None:
        self._config = config
        self._states = states
        self._slots = slots
        self._reuse = reuse
        self._pace = pace

    def chunks(self) -> tuple[Chunk, ...]:
        """All but each prompt's last token, which is decoded."""
        running = any(slot.state is SlotState.GENERATING for slot in self._slots)
        if running and not self._config.cont_batching:
            return ()
        waiting = [slot for slot in self._slots if slot.state is SlotState.PROMPT]
        seconds, most = self._pace.seconds(running, len(waiting)), self._config.n_batch
        chunks: list[Chunk] = []
        for slot in sorted(waiting, key=lambda slot: slot.t_start):
            n, least = self._pace.budget(seconds, slot.n_prompt_done), smallest_chunk(slot.n_prompt_done)
            if chunks and n < least:
                break
            for chunk in self._chunks_of(slot, min(most, max(n, least))):
                chunks.append(chunk)
                most -= len(chunk.tokens)
                seconds -= self._pace.cost(chunk.end - len(chunk.tokens), chunk.end)
        return tuple(chunks)

    def checkpoints(self, chunks: Sequence[Chunk]) -> list[Move]:
        """State that cannot be cut is stored where prompts are likely to part."""
        if self._states.is_plain or not self._config.ctx_checkpoints:
            return []
        step, n_ubatch = self._config.checkpoint_min_step, self._config.n_ubatch
        slots = [self._slots[chunk.slot] for chunk in chunks]
        reached = [
            slot
            for slot in slots
            if is_checkpoint(slot.n_prompt_done, slot.n_prompt, n_ubatch, step)
            # behind an invocation nothing is worth storing, and storing what is before it would cut the slot
            and slot.n_exact == len(slot.tokens)
        ]
        return [move for slot in reached for move in self._reuse.keep(slot)]

    def _chunks_of(self, slot: Slot, budget: int) -> list[Chunk]:
        assert slot.task is not None
        chunks: list[Chunk] = []
        while (left := slot.n_prompt - 1 - slot.n_prompt_done) > 0 and budget > 0:
            n = min(left, budget, self._config.n_ubatch, self._to_checkpoint(slot), _to_invocation(slot))
            adapters = slot.task.adapters_at(slot.n_prompt_done)
            tokens = slot.task.tokens[slot.n_prompt_done : slot.n_prompt_done + n]
            slot.n_prompt_done += n
            slot.tokens.extend(tokens)
            budget -= n
            chunks.append(
                Chunk(slot.id, slot.task_id, tokens, slot.n_prompt_done, adapters, expected_tokens(slot))
            )
            if not self._states.is_plain:
                break  # the state is stored between steps
        return chunks

    def _to_checkpoint(self, slot: Slot) -> int:
        """Tokens up to where the slot's state is to be stored next."""
        if self._states.is_plain:
            return slot.n_prompt
        step, n_ubatch = self._config.checkpoint_min_step, self._config.n_ubatch
        return next_checkpoint(slot.n_prompt_done, slot.n_prompt, n_ubatch, step) - slot.n_prompt_done


def expected_tokens(slot: Slot) -> int:
    """Tokens whose state a slot with a prompt will soon hold."""
    return min(slot.n_prompt + min(slot.limit, MOST_EXPECTED), slot.n_ctx)


def _to_invocation(slot: Slot) -> int:
    """Tokens up to where an adapter is invoked: a chunk is evaluated with one set of adapters."""
    at = slot.task.invoked_at if slot.task else 0
    return at - slot.n_prompt_done if slot.n_prompt_done < at else slot.n_prompt
