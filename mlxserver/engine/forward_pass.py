"""Forward passes of the model over the state of slots; they build the graph and wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx

from mlxserver.engine.compiled_steps import CompiledSteps
from mlxserver.engine.plan import Chunk
from mlxserver.kv.identity import Adapters
from mlxserver.kv.slot_states import SlotStates
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.parameters import n_bytes


class ForwardPass:
    """Each method is one pass over the weights. Where it raises, the slots may be longer than their state."""

    def __init__(
        self,
        module: Any,
        states: SlotStates,
        adapters: LoadedAdapters,
        compiled: CompiledSteps | None,
        shares_passes: bool,
    ) -> None:
        """``shares_passes``: one may have chunks and tokens of several slots."""
        self._module = module
        self._states = states
        self._adapters = adapters
        self._compiled = compiled
        self._shares_passes = shares_passes
        self.weight_bytes = n_bytes(module)

    def use(self, adapters: Sequence[Adapters]) -> None:
        """What rows evaluated elsewhere use."""
        self._adapters.use(adapters)

    def chunk(self, chunk: Chunk) -> None:
        """Evaluate a chunk of a prompt."""
        self._sequence(chunk, mx.array(chunk.tokens, dtype=mx.int32))

    def chunks(self, chunks: Sequence[Chunk]) -> None:
        """Evaluate chunks of several slots of a plain model."""
        self._ragged((), None, (), chunks)

    def reads_all(self, adapters: Sequence[Adapters]) -> bool:
        """Whether ``joint`` makes logits of all tokens, with these adapters among its own."""
        # a head may be adapted too, row by row
        return not self._shares_passes or any(adapters)

    def rows(
        self, slots: Sequence[int], tokens: mx.array, adapters: Sequence[Adapters], may_make: bool
    ) -> mx.array:
        """(B, n_vocab) of one token (B,) of each slot. ``may_make``: a graph for it may be compiled."""
        self._adapters.use(adapters)
        if self._compiled and not any(adapters):
            logits = self._compiled.logits(tokens, list(slots), may_make)
            if logits is not None:
                return logits
        caches = self._states.decode(slots, finite=any(adapters))
        return cast(mx.array, self._module(tokens[:, None], cache=caches)[:, -1])

    def joint(
        self, slots: Sequence[int], tokens: mx.array, adapters: Sequence[Adapters], chunks: Sequence[Chunk]
    ) -> mx.array:
        """As ``rows``, with chunks of prompts in the same pass, each before its slot's token."""
        if not self._shares_passes:
            (chunk,) = chunks
            read = mx.array(chunk.tokens, dtype=mx.int32)
            return self._sequence(chunk, mx.concatenate([read, tokens]))[:, -1]
        return self._ragged(slots, tokens, adapters, chunks)[: len(slots), -1]

    def _sequence(self, chunk: Chunk, tokens: mx.array) -> mx.array:
        """(1, n, n_vocab) of tokens (n,) of one slot, the chunk's and perhaps the one behind them."""
        # scales are the clients', and whatever large ones make overflow stays with their own rows
        finite = bool(chunk.adapters)
        caches = self._states.prompt_chunk(chunk.slot, len(tokens), finite, chunk.n_expected)
        self._adapters.use([chunk.adapters])
        return cast(mx.array, self._module(tokens[None], cache=caches))

    def _ragged(
        self,
        slots: Sequence[int],
        tokens: mx.array | None,
        adapters: Sequence[Adapters],
        chunks: Sequence[Chunk],
    ) -> mx.array:
        """(N, 1, n_vocab), the slots' tokens first; perhaps of these alone."""
        of_tokens = [*adapters, *(chunk.adapters for chunk in chunks for _ in chunk.tokens)]
        sizes = [(chunk.slot, len(chunk.tokens)) for chunk in chunks]
        n_expected = max(chunk.n_expected for chunk in chunks)
        n_read = len(slots) if slots and not self.reads_all(of_tokens) else None
        caches = self._states.ragged(slots, sizes, n_expected, any(of_tokens), n_read)
        self._adapters.use(of_tokens)
        read = mx.array([token for chunk in chunks for token in chunk.tokens], dtype=mx.int32)
        together = read if tokens is None else mx.concatenate([tokens, read])
        return cast(mx.array, self._module(together[:, None], cache=caches))
