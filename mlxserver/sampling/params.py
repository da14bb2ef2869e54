"""What one request asks of the sampler chain: plain data, no arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RANDOM_SEED = 0xFFFFFFFF
"""The seed that means "draw one": llama.cpp's -1 as an unsigned 32-bit number."""

DEFAULT_CHAIN = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


TriggerKind = Literal["word", "token", "pattern", "pattern_full"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """What makes a lazy grammar begin: a text, one token, or a pattern over all the text so far."""

    kind: TriggerKind
    value: str
    token: int = -1


@dataclass(frozen=True, slots=True)
class Grammar:
    """The language that the answer must be in. ``lark`` is llguidance's own notation.

    ``json_answer``: a JSON schema for what stands alone, or in a Markdown fence.
    """

    kind: Literal["gbnf", "json_schema", "json_answer", "lark"]
    text: str
    lazy: bool = False
    triggers: tuple[Trigger, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """How long reasoning may be, and the tokens around it."""

    start: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]
    """What ends reasoning that went past the budget: a message, and the end."""
    tokens: int = -1
    """-1: without bound; it can still be ended from outside."""
    prefill: tuple[int, ...] = ()
    """The end of the prompt, which may have opened the reasoning."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names, meanings and defaults are those of llama-server's request fields."""

    seed: int = RANDOM_SEED
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    samplers: tuple[str, ...] = DEFAULT_CHAIN
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, bias) in order; a bias of -inf forbids the token. ``ignore_eos`` is already folded in."""
    n_probs: int = 0
    post_sampling_probs: bool = False
    min_keep: int = 0
    grammar: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None


class SamplerError(ValueError):
    """The sampler chain cannot be built from these parameters."""


def validate(params: SamplingParams) -> None:
    """Raises SamplerError where llama.cpp's chain refuses to be built."""
    repeat = params.repeat_penalty
    if not math.isfinite(repeat) or repeat <= 0 or repeat < _SMALLEST_REPEAT:
        raise SamplerError("penalty_repeat must be finite and greater than 0")
    if not math.isfinite(params.frequency_penalty):
        raise SamplerError("penalty_freq must be finite")
    if not math.isfinite(params.presence_penalty):
        raise SamplerError("penalty_present must be finite")


_SMALLEST_REPEAT = 1 / 3.4028234663852886e38
"""Below this the reciprocal is not a finite 32-bit float."""
