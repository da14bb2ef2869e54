"""What the rope and YaRN options make of the rotary embedding that a model was trained with.

The rules and formulas are llama.cpp's: ``llama_context`` for what an option replaces, ggml's ``rope_yarn``
for what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mlxserver.models.errors import ModelError

SCALING_KINDS = ("none", "linear", "yarn", "longrope")
BETA_FAST, BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """The options as given; 0, a negative number (the last four) or an empty text leave it to the model."""

    scaling: str = ""
    freq_base: float = 0.0
    freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0

    @classmethod
    def from_options(cls, options: Any) -> RopeOptions:
        """Raises ModelError for numbers that no rotary embedding can have."""
        rope = cls(
            scaling=options.rope_scaling or "",
            freq_base=options.rope_freq_base or 0.0,
            freq_scale=options.rope_freq_scale or 0.0,
            yarn_orig_ctx=options.yarn_orig_ctx,
            yarn_ext_factor=options.yarn_ext_factor,
            yarn_attn_factor=options.yarn_attn_factor,
            yarn_beta_slow=options.yarn_beta_slow,
            yarn_beta_fast=options.yarn_beta_fast,
        )
        rope._check()
        return rope

    @property
    def names(self) -> tuple[str, ...]:
        """The options that ask for something, as on the command line."""
        return tuple(_OPTION[field.name] for field in fields(self) if self._asks(field.name))

    def refuse(self, what: str) -> None:
        """Raises ModelError for a model without a rotary embedding to change, where one is to be changed."""
        if self.names:
            raise ModelError(f"{', '.join(self.names)}: not supported for {what}")

    def _asks(self, name: str) -> bool:
        value = getattr(self, name)
        return bool(value) if name in _FROM_MODEL_IF_ZERO else value >= 0

    def _check(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "scaling" and not math.isfinite(value):
                raise ModelError(f"{_OPTION[field.name]}: {value} is no finite number")
        if self.freq_base and self.freq_base <= 1.0:
            raise ModelError(f"--rope-freq-base: {self.freq_base:g} is not above 1")
        if self.freq_scale < 0:
            raise ModelError(f"{_OPTION['freq_scale']}: {self.freq_scale:g} is negative")
        if self.yarn_orig_ctx < 0:
            raise ModelError(f"--yarn-orig-ctx: {self.yarn_orig_ctx} is negative")


_FROM_MODEL_IF_ZERO = ("scaling", "freq_base", "freq_scale", "yarn_orig_ctx")
_OPTION = {
    "scaling": "--rope-scaling",
    "freq_base": "--rope-freq-base",
    "freq_scale": "--rope-freq-scale (--rope-scale)",
    "yarn_orig_ctx": "--yarn-orig-ctx",
    "yarn_ext_factor": "--yarn-ext-factor",
    "yarn_attn_factor": "--yarn-attn-factor",
    "yarn_beta_slow": "--yarn-beta-slow",
    "yarn_beta_fast": "--yarn-beta-fast",
}


FROM_MODEL = RopeOptions()


@dataclass(frozen=True, slots=True)
class TrainedRope:
    """The rotary embedding of a model's own metadata.

    ``scale`` multiplies positions, so that it is 1 / factor. ``factors`` divide the frequency of each pair of
    dimensions. ``attn_factor`` multiplies queries and keys, whatever the scaling. Layers with a sliding
    window have their own base and scale, which no option changes.
    """

    base: float
    orig_ctx: int
    scale: float = 1.0
    scaling: str = "linear"
    attn_factor: float = 1.0
    beta_fast: float = BETA_FAST
    beta_slow: float = BETA_SLOW
    factors: Sequence[float] | None = None
    window_base: float | None = None
    window_scale: float | None = None


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """What ggml's ``rope_ext`` is given; ``ext_factor`` is the share of extrapolation in YaRN's mix."""

    base: float
    scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float
    beta_slow: float
    orig_ctx: int

    @property
    def magnitude(self) -> float:
        """The factor of queries and keys, each."""
        return self.attn_factor * (1.0 - 0.1 * math.log(self.scale) if self.ext_factor else 1.0)

    def mix(self, pair: int, n_dims: int) -> float:
        """How far the frequency of dimensions ``pair`` stays unscaled: 0 is scaled as a whole."""
        if not self.ext_factor:
            return 0.0
        low = max(0.0, _whole(math.floor, self._turns_at(self.beta_fast, n_dims)))
        high = min(n_dims - 1.0, _whole(math.ceil, self._turns_at(self.beta_slow, n_dims)))
        ramp = (pair - low) / max(0.001, high - low)
        return (1.0 - min(1.0, max(0.0, ramp))) * self.ext_factor

    def _turns_at(self, n_turns: float, n_dims: int) -> float:
        """The pair of dimensions that turns ``n_turns`` times within the original context."""
        if not n_turns:
            return math.inf
        return n_dims * math.log(self.orig_ctx / (n_turns * 2 * math.pi)) / (2 * math.log(self.base))


def effective(trained: TrainedRope, given: RopeOptions) -> RopeParameters:
    """The parameters of layers with full attention."""
    scaling = given.scaling or trained.scaling
    scale = 1.0 if scaling == "none" else given.freq_scale or trained.scale
    ext_factor = _given(given.yarn_ext_factor, 1.0 if scaling == "yarn" else 0.0)
    orig_ctx = given.yarn_orig_ctx or trained.orig_ctx
    if ext_factor and orig_ctx <= 0:
        raise ModelError("--yarn-orig-ctx is needed: the model does not tell its context")
    attn_factor = _yarn_attn_factor(scale) if ext_factor else _given(given.yarn_attn_factor, 1.0)
    return RopeParameters(
        base=given.freq_base or trained.base,
        scale=scale,
        ext_factor=ext_factor,
        attn_factor=attn_factor * trained.attn_factor,
        beta_fast=_given(given.yarn_beta_fast, trained.beta_fast),
        beta_slow=_given(given.yarn_beta_slow, trained.beta_slow),
        orig_ctx=orig_ctx,
    )


def in_window(parameters: RopeParameters, trained: TrainedRope) -> RopeParameters:
    """The parameters of layers with a sliding window."""
    base = trained.base if trained.window_base is None else trained.window_base
    scale = trained.scale if trained.window_scale is None else trained.window_scale
    return replace(parameters, base=base, scale=scale)


def notes(parameters: RopeParameters, given: RopeOptions) -> list[str]:
    """Lines for the log: what holds, and which options have no effect beside the others."""
    if not given.names:
        return []
    lines = [
        f"rope: freq_base = {parameters.base:.1f}, freq_scale = {parameters.scale:g}, "
        f"ext_factor = {parameters.ext_factor:g}, magnitude = {parameters.magnitude:.4f}"
    ]
    return lines + [f"{name} has no effect {why}" for name, why in _idle(parameters, given)]


def _idle(parameters: RopeParameters, given: RopeOptions) -> list[tuple[str, str]]:
    idle = []
    if given.freq_scale and given.freq_scale != parameters.scale:
        idle.append((_OPTION["freq_scale"], "where the scaling is 'none'"))
    if parameters.ext_factor and given.yarn_attn_factor >= 0:
        idle.append(("--yarn-attn-factor", "with YaRN's mix, which has its own"))
    if not parameters.ext_factor:
        of_yarn = ("--yarn-orig-ctx", "--yarn-beta-slow", "--yarn-beta-fast")
        idle += [(name, "without YaRN's mix") for name in given.names if name in of_yarn]
    return idle


def _yarn_attn_factor(scale: float) -> float:
    """Cancels ggml's magnitude where positions are stretched, since it is for compressed ones only."""
    log_magnitude = 1.0 - 0.1 * math.log(scale)
    if abs(log_magnitude) < 1e-6:
        raise ModelError(f"{_OPTION['freq_scale']}: {scale:g} leaves no magnitude for YaRN")
    return max(1.0, log_magnitude) / log_magnitude


def _given(value: float, otherwise: float) -> float:
    return value if value >= 0 else otherwise


def _whole(to_whole: Any, value: float) -> float:
    return float(to_whole(value)) if math.isfinite(value) else value
