"""What one step does, decided by the scheduler and carried out by the runner: plain data, no arrays."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.engine.pass_shape import PassShape
from mlxserver.engine.task import Failed, TokenProbs
from mlxserver.kv.identity import Adapters, CacheIdentity
from mlxserver.kv.trie import Node
from mlxserver.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Save:
    """Store the state of a slot's first ``len(tokens)`` tokens in the trie.

    ``task_id`` of a move: the task of the slot, which fails with it; maybe one that has ended.
    """

    slot: int
    task_id: int
    identity: CacheIdentity
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep the first ``n`` tokens of a slot's state."""

    slot: int
    task_id: int
    n: int


@dataclass(frozen=True, slots=True)
class Load:
    """Bring the tokens ``[start, end)`` of the trie's path to ``node``, which is pinned until then.

    ``at`` is the position that the first of them gets.
    """

    slot: int
    task_id: int
    node: Node
    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring the tokens ``[start, end)`` of a slot to the positions from ``at`` on."""

    slot: int
    task_id: int
    source: int
    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop ``n_discard`` tokens behind the first ``n_keep``; those behind them move up."""

    slot: int
    task_id: int
    n_keep: int
    n_discard: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Give back the memory that no slot's tokens take; ``slot`` is to be filled next."""

    slot: int
    task_id: int


@dataclass(frozen=True, slots=True)
class Grow:
    """Have more room for ``n`` tokens of a slot, made for about so many seconds; a later one goes on."""

    slot: int
    task_id: int
    n: int
    seconds: float


Move = Save | Cut | Load | Copy | Discard | Compact | Grow


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens to evaluate; the last token of a prompt is never among them, it is decoded."""

    slot: int
    task_id: int
    tokens: tuple[int, ...]
    end: int
    """Prompt tokens whose state the slot holds after it."""
    adapters: Adapters = ()
    n_expected: int = 0
    """Tokens whose state the slot will soon hold."""

    @property
    def part(self) -> tuple[int, int]:
        """The ``(start, end)`` of its tokens in the prompt."""
        return self.end - len(self.tokens), self.end


@dataclass(frozen=True, slots=True)
class Join:
    """A slot decodes for the first time: its sampler starts with ``prompt``; its last token is the input."""

    slot: int
    task_id: int
    sampling: SamplingParams
    prompt: tuple[int, ...]
    adapters: Adapters = ()
    """What evaluates the slot's row from now on."""


@dataclass(frozen=True, slots=True)
class Decode:
    """A slot that takes part in the step's forward pass and gets one token."""

    slot: int
    task_id: int


@dataclass(frozen=True, slots=True)
class Embed:
    """A prompt, or a piece of one, that is evaluated for an embedding and leaves no state in its slot."""

    slot: int
    task_id: int
    tokens: tuple[int, ...]
    start: int
    is_last: bool
    normalize: int
    adapters: Adapters = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in the order of the fields."""

    moves: tuple[Move, ...] = ()
    """State stored, dropped and brought before anything is evaluated."""
    passes: tuple[tuple[Chunk, ...], ...] = ()
    """The chunks of each forward pass over prompts."""
    shares: tuple[Move, ...] = ()
    """State stored and copied between the prompts and the tokens."""
    joins: tuple[Join, ...] = ()
    decodes: tuple[Decode, ...] = ()
    embeds: tuple[Embed, ...] = ()
    is_joint: bool = False
    """The last pass over prompts and that of ``decodes`` are one."""

    @property
    def apart(self) -> tuple[tuple[Chunk, ...], ...]:
        """The passes over prompts alone."""
        return self.passes[:-1] if self.is_joint else self.passes

    @property
    def joint(self) -> tuple[Chunk, ...]:
        """The chunks that are evaluated with ``decodes``."""
        return self.passes[-1] if self.is_joint else ()

    @property
    def has_work(self) -> bool:
        return bool(self.moves or self.passes or self.decodes or self.embeds)

    @property
    def chunks(self) -> list[Chunk]:
        """What is evaluated of prompts but their last tokens."""
        return [chunk for chunks in self.passes for chunk in chunks]

    @property
    def grows(self) -> bool:
        """Whether it waits for buffers to be made."""
        return any(isinstance(move, Grow) for move in self.moves)

    @property
    def n_prompt(self) -> int:
        """Prompt tokens that are evaluated without being decoded."""
        return sum(len(chunk.tokens) for chunk in self.chunks) + sum(len(e.tokens) for e in self.embeds)

    @property
    def shapes(self) -> list[PassShape]:
        """Of the passes over prompts, the embeddings' among them."""
        shapes = [PassShape.of([chunk.part for chunk in chunks]) for chunks in self.apart]
        if self.is_joint:
            shapes.append(PassShape.of([chunk.part for chunk in self.joint], is_own=False))
        if self.embeds:
            parts = [(embed.start, embed.start + len(embed.tokens)) for embed in self.embeds]
            shapes.append(PassShape.padded(parts))
        return shapes


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What a slot's row gave in one step."""

    slot: int
    task_id: int
    token: int
    probs: TokenProbs | None


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a prompt: one, or one for each token; with pooling ``rank`` its scores."""

    slot: int
    task_id: int
    vectors: tuple[list[float], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a plan."""

    tokens: tuple[SampledToken, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    failures: tuple[Failed, ...] = ()
    """Tasks that ended in an error; what their slots hold is not to be used again."""
