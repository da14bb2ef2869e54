"""Which prompt tokens a step evaluates, and where state that cannot be cut is stored on the way."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.checkpoints import is_checkpoint, next_checkpoint
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.pace import Pace
from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.plan import Chunk, Decode, Grow, Join, Move
from mlxserver.engine.reuse import Reuse, States
from mlxserver.engine.slot import Slot, SlotState

MOST_EXPECTED = 128
"""Tokens that a request is believed to generate; room for them is made with that for its prompt."""
MOST_REST = 32
"""Tokens of a prompt's end that are evaluated with its last one where slots share no pass: logits are made of
all of them, which for so few costs less than reading the weights once more."""


class Prompts:
    """The prompt that began first goes first; the time for prompts is shared between those that wait."""

    def __init__(
        self,
        config: EngineConfig,
        states: States,
        slots: Sequence[Slot],
        reuse: Reuse,
        pace: Pace,
        shares_passes: bool,
    ) -> None:
        self._config = config
        self._states = states
        self._slots = slots
        self._reuse = reuse
        self._pace = pace
        self._shares_passes = shares_passes and states.is_plain

    def room(self) -> list[Move]:
        """Beside streams, the buffers grow over as many steps as it takes before any prompt goes on."""
        seconds = self._pace.seconds(self._n_streams())
        for slot in self._waiting():
            if self._must_grow(slot):
                return [Grow(slot.id, slot.task_id, expected_tokens(slot), seconds)]
        return []

    def passes(self) -> tuple[tuple[Chunk, ...], ...]:
        """All but each prompt's last token, which is decoded; the chunks of each forward pass."""
        n_streams, waiting = self._n_streams(), self._waiting()
        if not waiting:
            return ()
        is_joint = self._shares_passes and n_streams > 0
        left, most = self._pace.seconds(n_streams, len(waiting), not is_joint), self._config.n_batch
        passes: list[list[Chunk]] = []
        for slot in waiting:
            while limit := min(most, self._limit(slot)):
                joins = self._may_join(passes, slot)
                is_own = not joins and not (is_joint and not passes)
                n = self._pace.budget(left, slot.n_prompt_done, is_own)
                # a part of a prompt is worth a pass of its own where it takes longer than that
                is_worth = not is_own or n >= limit or left >= 2 * self._pace.pass_seconds
                if passes and (n < 1 or not is_worth or (is_joint and is_own)):
                    return _fixed(passes)
                if joins:
                    limit = min(limit, self._config.n_ubatch - _n_tokens(passes[-1]))
                else:
                    passes.append([])
                chunk = _chunk(slot, max(1, min(limit, n)))
                passes[-1].append(chunk)
                left -= self._pace.cost(PassShape.of([chunk.part], is_own))
                most -= len(chunk.tokens)
                slot.n_prompt_done = chunk.end
                slot.tokens.extend(chunk.tokens)
                if not self._states.is_plain:
                    break  # the state is stored between steps
        return _fixed(passes)

    def are_joint(
        self, passes: Sequence[Sequence[Chunk]], joins: Sequence[Join], decodes: Sequence[Decode]
    ) -> bool:
        """Whether the last pass and that of a step's rows are to be one; nothing is moved between them."""
        if not (passes and decodes and self._states.is_plain):
            return False
        if self._shares_passes:
            return True
        # the end of a prompt and its last token are a sequence as any other
        chunks = passes[-1]
        if _n_tokens(chunks) > MOST_REST:
            return False
        same = [join for join in joins if (join.slot, join.adapters) == (chunks[0].slot, chunks[0].adapters)]
        return len(chunks) == len(decodes) == len(joins) == len(same)

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

    def _n_streams(self) -> int:
        return sum(slot.state is SlotState.GENERATING for slot in self._slots)

    def _waiting(self) -> list[Slot]:
        """Whose prompt may go on, the one that began first in front."""
        if self._n_streams() and not self._config.cont_batching:
            return []
        waiting = [slot for slot in self._slots if slot.state is SlotState.PROMPT]
        return sorted(waiting, key=lambda slot: slot.t_start)

    def _must_grow(self, slot: Slot) -> bool:
        return self._n_streams() > 0 and self._states.is_far_from(slot.id, expected_tokens(slot))

    def _limit(self, slot: Slot) -> int:
        """Tokens that a slot's next chunk may have; 0 where all is done."""
        left = slot.n_prompt - 1 - slot.n_prompt_done
        return min(left, self._config.n_ubatch, self._to_checkpoint(slot), _to_invocation(slot))

    def _may_join(self, passes: Sequence[Sequence[Chunk]], slot: Slot) -> bool:
        """Whether a chunk of a slot can be part of the last pass: a pass evaluates one chunk of a slot."""
        if not (self._shares_passes and passes) or _n_tokens(passes[-1]) >= self._config.n_ubatch:
            return False
        return all(chunk.slot != slot.id for chunk in passes[-1])

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


def _n_tokens(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.tokens) for chunk in chunks)


def _fixed(passes: Sequence[Sequence[Chunk]]) -> tuple[tuple[Chunk, ...], ...]:
    return tuple(map(tuple, passes))


def _chunk(slot: Slot, n: int) -> Chunk:
    """The next ``n`` tokens of a slot's prompt."""
    assert slot.task is not None
    start, end = slot.n_prompt_done, slot.n_prompt_done + n
    tokens, adapters = slot.task.tokens[start:end], slot.task.adapters_at(start)
    return Chunk(slot.id, slot.task_id, tokens, end, adapters, expected_tokens(slot))
