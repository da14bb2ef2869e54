"""Adds up what slots and steps did, in llama-server's meaning of each counter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from mlxserver.engine.plan import Chunk, Decode, Embed, Plan
from mlxserver.engine.slot import Slot
from mlxserver.engine.task import AdapterCounters, Counters


class Tally:
    def __init__(self) -> None:
        self._totals: defaultdict[str, float] = defaultdict(int)
        """By the names of the fields of Counters."""
        self.adapters: Mapping[str, AdapterCounters] = {}
        """By digest; a new object after each change, so that a snapshot may keep it."""

    @property
    def counters(self) -> Counters:
        return Counters(**self._totals)  # type: ignore[arg-type]

    def took_over(self, n: int) -> None:
        """A prompt began with ``n`` tokens from the cache."""
        self._add(prompt_tokens_cached=n)

    def prompt_took(self, seconds: float) -> None:
        self._add(prompt_seconds=seconds)

    def ran(self, plan: Plan, slots: Sequence[Slot]) -> None:
        """A step was carried out."""
        parts: tuple[Chunk | Decode | Embed, ...] = (*plan.chunks, *plan.decodes, *plan.embeds)
        busy = {part.slot for part in parts}
        if not busy:
            return
        n_cells = [slot.n_cells for slot in slots] + [e.start + len(e.tokens) for e in plan.embeds]
        self._totals["n_tokens_max"] = max(self._totals["n_tokens_max"], *n_cells)
        self._add(prompt_tokens=plan.n_prompt + len(plan.joins), decodes=1, busy_slots=len(busy))

    def ended(self, slot: Slot, n_generated: int) -> None:
        """A task left its slot with so many sampled tokens."""
        self._add(
            predicted_tokens=n_generated,
            predicted_seconds=max(0.0, slot.t_last - slot.t_first),
            predicted_after_first=max(0, n_generated - 1),
        )
        for digest in {digest for digest, _ in slot.task.adapters} if slot.task else ():
            old = self.adapters.get(digest, AdapterCounters())
            new = AdapterCounters(
                old.requests + 1,
                old.prompt_tokens + max(0, slot.n_prompt_done - slot.n_past),
                old.predicted_tokens + n_generated,
            )
            self.adapters = {**self.adapters, digest: new}

    def _add(self, **more: float) -> None:
        for name, value in more.items():
            self._totals[name] += value
