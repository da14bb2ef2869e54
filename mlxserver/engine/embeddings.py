"""Which prompts a step turns into embeddings. They use no cache: what their slots hold stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.engine.config import EngineConfig
from mlxserver.engine.pace import Pace
from mlxserver.engine.plan import Embed
from mlxserver.engine.slot import Slot, SlotState
from mlxserver.engine.task import Failed, Task

NO_LOGITS = "the current context does not logits computation. skipping"
"""llama-server's words where a model that reads only is to write."""


class Embeddings:
    """A prompt is evaluated whole, in one step, unless only its last token counts."""

    def __init__(self, config: EngineConfig, slots: Sequence[Slot], pace: Pace) -> None:
        self._config = config
        self._slots = slots
        self._pace = pace

    def refusal(self, task: Task, n_ctx: int) -> Failed | None:
        """Why a prompt cannot be evaluated; ``n_ctx`` is its slot's. Asked for embeddings, and for whatever
        else is wanted from a model that gives nothing else."""
        if not task.is_embedding:
            return Failed(task.id, "server_error", NO_LOGITS, is_fault_of_request=True)
        n, n_ubatch = len(task.tokens), self._config.n_ubatch
        if n == 0:
            return Failed(task.id, "invalid_request_error", "Input content cannot be empty")
        if self._config.splits_embeddings:
            return too_long(task, n_ctx) if n >= n_ctx else None
        if n > n_ubatch:
            message = (
                f"input ({n} tokens) is too large to process. increase the physical batch size "
                f"(current batch size: {n_ubatch})"
            )
            return Failed(task.id, "server_error", message, is_fault_of_request=True)
        if n > n_ctx:
            message = f"input ({n} tokens) is larger than the max context size ({n_ctx} tokens). skipping"
            return _exceeds(task, n_ctx, message)
        return None

    def batch(self) -> tuple[Embed, ...]:
        """The oldest prompt, and as many others as fit beside it when all are padded to one length.

        One batch a step: beside running streams it costs about as much as a chunk of a prompt.
        """
        n_streams = sum(slot.state is SlotState.GENERATING for slot in self._slots)
        if n_streams and not self._config.cont_batching:
            return ()
        waiting = [s for s in self._slots if s.state is SlotState.EMBEDDING and s.n_prompt_done < s.n_prompt]
        waiting.sort(key=lambda slot: (slot.t_start, slot.task_id))
        if not waiting:
            return ()
        if waiting[0].n_prompt > self._config.n_ubatch:
            return (self._piece(waiting[0]),)
        budget = min(self._pace.budget(self._pace.seconds(n_streams)), self._config.n_batch)
        chosen: list[Slot] = []
        for slot in [slot for slot in waiting if slot.n_prompt <= self._config.n_ubatch]:
            longest = max(slot.n_prompt, *(other.n_prompt for other in chosen), 0)
            if not chosen or longest * (len(chosen) + 1) <= budget:
                chosen.append(slot)
        return tuple(self._piece(slot) for slot in chosen)

    def _piece(self, slot: Slot) -> Embed:
        assert slot.task is not None
        start = slot.n_prompt_done
        slot.n_prompt_done = min(slot.n_prompt, start + self._config.n_ubatch)
        tokens = slot.task.tokens[start : slot.n_prompt_done]
        is_last = slot.n_prompt_done == slot.n_prompt
        adapters = slot.task.identity.adapters
        return Embed(slot.id, slot.task_id, tokens, start, is_last, slot.task.embd_normalize, adapters)


def too_long(task: Task, n_ctx: int) -> Failed:
    n = len(task.tokens)
    message = f"request ({n} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
    return _exceeds(task, n_ctx, message)


def _exceeds(task: Task, n_ctx: int, message: str) -> Failed:
    fields = {"n_prompt_tokens": len(task.tokens), "n_ctx": n_ctx}
    return Failed(task.id, "exceed_context_size_error", message, fields)
