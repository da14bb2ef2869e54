"""Carries out a plan on arrays: prompt chunks, one forward pass for all slots that decode, embeddings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

import mlx.core as mx

from mlxserver.engine.embedder import Embedder
from mlxserver.engine.forward_pass import ForwardPass
from mlxserver.engine.memory import StepMemory
from mlxserver.engine.mover import Mover
from mlxserver.engine.next_tokens import NextTokens
from mlxserver.engine.plan import Chunk, Decode, Embed, Embedded, Join, Move, Plan, Result, SampledToken
from mlxserver.engine.row_groups import row_groups
from mlxserver.engine.task import Failed
from mlxserver.kv.identity import Adapters
from mlxserver.kv.memory import OutOfMemory, is_exhausted
from mlxserver.kv.slot_states import SlotStates
from mlxserver.sampling.params import SamplerError
from mlxserver.sampling.sampler import Sampled, Sampler

log = logging.getLogger("mlxserver.srv")

Item = Move | Chunk | Join | Decode | Embed
"""What a plan has for one task."""


@dataclass(slots=True)
class Step:
    """A plan whose work was handed to the device; ``Runner.collect`` waits for it."""

    plan: Plan
    is_ahead: bool = False
    """It was launched before the step in front of it was taken in."""
    sampled: list[tuple[list[Decode], Sampled]] = field(default_factory=list)
    """A group of rows in the order of its batch, and what it gave."""
    joint: list[Chunk] = field(default_factory=list)
    """Chunks of prompts that are evaluated with the rows."""
    embedded: tuple[list[Embed], mx.array] | None = None
    """The rows of the step's embeddings and what the embedder gave."""
    marker: mx.array | None = None
    failures: list[Failed] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    """Tasks that failed in this step or in the one ahead of it: nothing more is done for them."""


class Runner:
    """Owns the arrays: the model, the state of the slots, the samplers, each slot's last token.

    ``launch`` only builds the graph and sends it off; nothing waits for the device before ``collect``,
    so that the next step can be launched in between.
    """

    def __init__(
        self,
        forward: ForwardPass,
        states: SlotStates,
        mover: Mover,
        sampler: Sampler,
        alone: bool = False,
        embedder: Embedder | None = None,
    ) -> None:
        self._pass = forward
        self._states = states
        self._mover = mover
        self._sampler = sampler
        self._alone = alone
        self._embedder = embedder
        self._memory = StepMemory(states)
        self._ahead = Step(Plan())
        self._task_of: dict[int, int] = {}
        """Slot -> the task whose sampler it has; a task that failed has none."""
        self._adapters_of: dict[int, Adapters] = {}
        """Slot -> what evaluates its row."""
        self._next = NextTokens()

    def needs_host(self, decodes: Sequence[Decode]) -> bool:
        """Whether a row's next token needs the one before it on the host."""
        return any(self._sampler.needs_host(d.slot) for d in decodes if d.slot in self._task_of)

    def end_reasoning(self, task_id: int) -> None:
        """Nothing where the task has no slot, or is not at its reasoning."""
        for slot, owner in self._task_of.items():
            if owner == task_id:
                self._sampler.end_reasoning(slot)

    def launch(self, plan: Plan) -> Step:
        # the plan may have been made before the failures of the step ahead of it were known
        step = Step(plan, broken={failure.task_id for failure in self._ahead.failures})
        self._ahead = step
        self._move(step, plan.moves)
        for chunks in plan.apart:
            self._prompts(step, chunks)
        self._move(step, plan.shares)
        for join in plan.joins:
            if join.task_id not in step.broken:
                self._guard(step, [join], lambda join=join: self._join(join))
        decodes = self._with_room(step, self._intact(step, plan.decodes))
        step.joint = self._that_may_join(step, plan.joint, decodes)
        decodes = self._intact(step, decodes)
        for group in [[decode] for decode in decodes] if self._alone else [decodes] if decodes else []:
            # rows that change places are not only those of the group: an error there is nobody's
            passes = self._states.arrange_passes(self._passes([decode.slot for decode in group]))
            self._decode(step, group, passes)
        embeds = self._that_fit(step, [embed for embed in plan.embeds if embed.task_id not in step.broken])
        if embeds:
            self._guard(step, embeds, lambda: self._embed(step, embeds))
        return step

    def collect(self, step: Step) -> Result:
        """Wait for a step and read its tokens back."""
        tokens: list[SampledToken] = []
        for rows, sampled in step.sampled:
            evaluated: list[Item] = [*rows, *step.joint]
            self._guard(
                step,
                evaluated,
                lambda rows=rows, sampled=sampled: tokens.extend(self._read(step, rows, sampled)),
            )
        embedded: list[Embedded] = []
        if step.embedded is not None and self._embedder is not None:
            embeds, result = step.embedded
            read = self._embedder.read
            self._guard(step, embeds, lambda: embedded.extend(read(embeds, result)))
        if not step.sampled and step.marker is not None:
            self._guard(step, step.plan.chunks, lambda: mx.eval(step.marker))
        return Result(tuple(tokens), tuple(embedded), tuple(step.failures))

    def _move(self, step: Step, moves: Sequence[Move]) -> None:
        for move in moves:
            done = move.task_id not in step.broken and self._guard(
                step, [move], lambda move=move: self._mover.carry_out(move)
            )
            if not done:
                self._mover.give_up(move)

    def _prompts(self, step: Step, chunks: Sequence[Chunk]) -> None:
        """What fails together is tried chunk by chunk: only the bad ones' tasks fail."""
        whole = [chunk for chunk in chunks if chunk.task_id not in step.broken]
        together = len(whole) > 1 and self._memory.fit_together(whole)
        if together and self._prompts_together(step, whole):
            return
        self._one_by_one(step, whole)

    def _one_by_one(self, step: Step, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._guard(step, [chunk], lambda chunk=chunk: self._prompt(step, chunk))

    def _prompts_together(self, step: Step, chunks: list[Chunk]) -> bool:
        """One pass for chunks of several slots of a plain model. False where it failed."""
        lengths = {chunk.slot: self._states.length(chunk.slot) for chunk in chunks}
        try:
            self._pass.chunks(chunks)
            self._send_off(step)
            return True
        except Exception as error:
            log.exception("a pass of %d prompts failed: each is tried by itself", len(chunks))
            self._states.undo(lengths)
            self._memory.failed(error)
            return False

    def _prompt(self, step: Step, chunk: Chunk) -> None:
        for piece in self._memory.pieces(chunk):
            n = self._states.length(piece.slot)
            try:
                self._evaluate(step, piece)
            except Exception as error:
                if not (self._memory.failed(error) and self._states.is_plain):
                    raise
                self._states.undo({piece.slot: n})
                self._evaluate(step, piece)

    def _evaluate(self, step: Step, chunk: Chunk) -> None:
        self._pass.chunk(chunk)
        self._send_off(step)

    def _send_off(self, step: Step) -> None:
        """Have the device evaluate the state of all slots."""
        arrays = self._states.arrays()
        # a sum is a new buffer: waiting for it holds no view of the state's own buffers
        step.marker = arrays[-1][(0,) * arrays[-1].ndim].sum()
        mx.async_eval(*arrays, step.marker)  # type: ignore[no-untyped-call]

    def _embed(self, step: Step, embeds: list[Embed]) -> None:
        assert self._embedder is not None, "the engine was not started for embeddings"
        self._pass.use([embed.adapters for embed in embeds])
        step.embedded = embeds, self._embedder.launch(embeds)

    def _intact(self, step: Step, decodes: Sequence[Decode]) -> list[Decode]:
        """Those whose task has not failed."""
        return [decode for decode in decodes if self._task_of.get(decode.slot) == decode.task_id]

    def _that_may_join(self, step: Step, chunks: Sequence[Chunk], decodes: list[Decode]) -> list[Chunk]:
        """The chunks that share the rows' pass; where they do not fit into it they are evaluated before."""
        whole = [chunk for chunk in chunks if chunk.task_id not in step.broken]
        if whole and decodes:
            adapters = [self._adapters_of[decode.slot] for decode in decodes]
            adapters += [chunk.adapters for chunk in whole]
            if self._memory.fit_together(whole, decodes, self._pass.reads_all(adapters)):
                return whole
        self._one_by_one(step, whole)
        return []

    def _with_room(self, step: Step, decodes: list[Decode]) -> list[Decode]:
        """The rows that get another token; a task whose row cannot fails."""
        if self._memory.expect_tokens(decodes):
            return decodes
        rows: list[Decode] = []
        for decode in decodes:
            wanted = [*rows, decode]
            if self._guard(step, [decode], lambda wanted=wanted: self._memory.expect_token(wanted)):
                rows = wanted
        return rows

    def _that_fit(self, step: Step, embeds: list[Embed]) -> list[Embed]:
        """Prompts that fit into memory together; the longest ones fail until they do."""
        while embeds and (reason := self._memory.shortage(embeds)):
            longest = max(embeds, key=lambda embed: len(embed.tokens))
            self._fail(step, [longest], "server_error", reason)
            embeds = [embed for embed in embeds if embed is not longest]
        return embeds

    def _join(self, join: Join) -> None:
        self._sampler.begin(join.slot, join.sampling, join.prompt)
        self._task_of[join.slot] = join.task_id
        self._adapters_of[join.slot] = join.adapters
        self._next.put(join.slot, mx.array([join.prompt[-1]], dtype=mx.int32))

    def _passes(self, slots: list[int]) -> list[list[int]]:
        """The slots of each forward pass."""
        states = self._states
        if not states.is_plain or len(slots) < 2:
            return [slots]
        lengths = [states.length(slot) for slot in slots]
        return row_groups(slots, lengths, states.bytes_per_token, self._pass.weight_bytes)

    def _decode(self, step: Step, decodes: list[Decode], passes: list[list[int]]) -> None:
        """One token of each slot.

        What fails together is tried row by row where state can be put back: only the bad ones' tasks fail.
        """
        of_slot = {decode.slot: decode for decode in decodes}
        rows = [of_slot[slot] for slots in passes for slot in slots]
        tokens = self._next.take([row.slot for row in rows])
        is_one = len(rows) == 1 and not step.joint
        if not is_one and self._decode_together(step, rows, tokens, [len(slots) for slots in passes]):
            return
        chunks, step.joint = step.joint, []
        self._one_by_one(step, chunks)
        for index, row in enumerate(rows):
            one = tokens[index : index + 1]
            if row.task_id not in step.broken and self._guard(
                step, [row], lambda row=row, one=one: self._forward(step, [row], one, [1])
            ):
                self._next.put(row.slot, step.sampled[-1][1].tokens)

    def _decode_together(self, step: Step, rows: list[Decode], tokens: mx.array, sizes: list[int]) -> bool:
        """False where it failed, and each row may be tried by itself."""

        def forward() -> None:
            self._forward(step, rows, tokens, sizes)
            # slots that sit a step out (their bound is reached) never need their last token again
            self._next.keep([row.slot for row in rows], step.sampled[-1][1].tokens)

        if not self._states.can_undo:
            self._guard(step, rows, forward)
            return True
        try:
            forward()
            return True
        except Exception as error:
            log.exception("a step of %d rows failed: each is tried by itself", len(rows))
            self._memory.failed(error)
            return False

    def _forward(self, step: Step, rows: list[Decode], tokens: mx.array, sizes: list[int]) -> None:
        """``tokens`` (B,), one of each row; so many rows a pass as ``sizes`` says.

        Where it raises, state is put back if it can be.
        """
        order = [row.slot for row in rows]
        lengths = {slot: self._states.length(slot) for slot in (*order, *(c.slot for c in step.joint))}
        sampled = None
        try:
            logits = self._logits(step, order, tokens, sizes)
            sampled = self._sampler.sample(logits, order)
            mx.async_eval(*sampled.arrays())  # type: ignore[no-untyped-call]
        except Exception:
            if sampled is not None:
                self._sampler.undo()
            if (len(rows) > 1 or step.joint) and self._states.can_undo:
                self._states.undo(lengths)
            raise
        step.sampled.append((rows, sampled))

    def _logits(self, step: Step, order: list[int], tokens: mx.array, sizes: list[int]) -> mx.array:
        """(B, n_vocab) of one token of each slot; the first pass has the chunks of prompts too."""
        adapters = [self._adapters_of[slot] for slot in order]
        may_make = not step.plan.n_prompt  # beside a prompt the step is long enough
        found, joint = [], step.joint
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            part = slice(end - size, end)
            own = order[part], tokens[part], adapters[part]
            found.append(self._pass.joint(*own, joint) if joint else self._pass.rows(*own, may_make))
            joint = []
        return mx.concatenate(found) if len(found) > 1 else found[0]

    def _read(self, step: Step, rows: list[Decode], sampled: Sampled) -> list[SampledToken]:
        mx.eval(*sampled.arrays())
        found = []
        tokens = cast(list[int], sampled.tokens.tolist())
        for index, (decode, token) in enumerate(zip(rows, tokens, strict=True)):
            if self._task_of.get(decode.slot) == decode.task_id:
                found += self._accept(step, decode, token, sampled, index)
        return found

    def _accept(
        self, step: Step, decode: Decode, token: int, sampled: Sampled, index: int
    ) -> list[SampledToken]:
        """The token; none where that fails: a grammar that cannot go on ends its own task only."""
        try:
            self._sampler.accept(decode.slot, token)
            return [SampledToken(decode.slot, decode.task_id, token, sampled.probs(index))]
        except SamplerError as error:
            self._fail(step, [decode], "server_error", f"got exception: {error}")
        except Exception:
            log.exception("a token cannot be taken in")
            self._fail(step, [decode], "server_error", "Compute error.")
        return []

    def _guard(self, step: Step, items: Sequence[Item], work: Any) -> bool:
        """An error fails the tasks that it belongs to; what their slots hold is dropped.

        Raises where the other slots' state cannot be evaluated any more either. Whether all went well.
        """
        try:
            work()
            return True
        except SamplerError as error:
            self._fail(step, items, "invalid_request_error", f"Failed to initialize samplers: {error}")
        except Exception as error:
            if isinstance(error, OutOfMemory):
                log.warning("%s", error)
            else:
                log.exception("a step failed")
            self._memory.failed(error)
            self._fail(step, items, "server_error", failure_text(error))
            for item in items:
                self._states.drop(item.slot)
            mx.eval(self._states.arrays())
        return False

    def _fail(self, step: Step, items: Sequence[Item], type: str, message: str) -> None:
        for item in items:
            self._task_of.pop(item.slot, None)
            step.broken.add(item.task_id)
            step.failures.append(Failed(item.task_id, type, message))


def failure_text(error: BaseException) -> str:
    """What a client is told of a step that failed."""
    if is_exhausted(error):
        reason = " ".join(str(error).split())[:200]
        return f"out of memory: {reason}" if reason else "out of memory"
    return str(error) if isinstance(error, OutOfMemory) else "Compute error."
