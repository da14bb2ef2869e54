"""What one step does, decided by the scheduler and carried out by the runner: plain data, no arrays."""

from __future__ import annotations

from dataclasses import dataclass

from mlxserver.engine.task import Failed, TokenProbs
from mlxserver.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep the first ``n`` tokens of a slot's state."""

    slot: int
    n: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens to evaluate; the last token of a prompt is never among them, it is decoded."""

    slot: int
    task_id: int
    tokens: tuple[int, ...]
    end: int
    """Prompt tokens whose state the slot holds after it."""


@dataclass(frozen=True, slots=True)
class Share:
    """Give the state of slot ``source`` to the slots of the other completions of its request."""

    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A slot decodes for the first time: its sampler starts with ``prompt``, whose last token is the input."""

    slot: int
    task_id: int
    sampling: SamplingParams
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decode:
    """A slot that takes part in the step's forward pass and gets one token."""

    slot: int
    task_id: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Carried out in the order of the fields."""

    cuts: tuple[Cut, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    shares: tuple[Share, ...] = ()
    joins: tuple[Join, ...] = ()
    decodes: tuple[Decode, ...] = ()

    @property
    def has_work(self) -> bool:
        return bool(self.chunks or self.decodes)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What a slot's row gave in one step."""

    slot: int
    task_id: int
    token: int
    probs: TokenProbs | None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a plan."""

    tokens: tuple[SampledToken, ...] = ()
    failures: tuple[Failed, ...] = ()
    """Tasks that ended in an error; what their slots hold is not to be used again."""
