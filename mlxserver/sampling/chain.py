"""Which samplers a request's parameters amount to, in order."""

from __future__ import annotations

from collections.abc import Sequence

from mlxserver.sampling.params import SamplingParams

Signature = tuple[str, ...]
"""Names of the active samplers; the last one selects. Rows of one signature are sampled together."""

_ADD = {"penalties", "dry"}
_KEEP_THE_BEST = {"top_n_sigma", "top_k", "top_p", "min_p", "min_p_keep"}
HOST = frozenset({"dry", "infill"})
"""Samplers that need the row's last token on the host."""


def signature(params: SamplingParams) -> Signature:
    """The chain without samplers that do nothing; a chain that leaves no choice ends in ``greedy``."""
    bias: Signature = ("logit_bias",) if params.logit_bias else ()
    if params.mirostat:
        if params.temperature <= 0:
            return (*bias, "greedy")
        plain: Signature = () if params.temperature == 1 else ("temperature",)
        return (*bias, *plain, "mirostat" if params.mirostat == 1 else "mirostat_v2")
    filters = [active for name in params.samplers if (active := _active(name, params))]
    greedy = _greedy(filters, params)
    if greedy is not None:
        return (*bias, *greedy, "greedy")
    return (*bias, *filters, "adaptive_p" if "adaptive_p" in params.samplers else "dist")


def can_resample(chain: Signature) -> bool:
    """Whether a chain can be applied twice to one token: nothing in it but the last draw moves on with it."""
    return chain[-1] == "dist" and "xtc" not in chain


def _active(name: str, p: SamplingParams) -> str | None:
    """The variant of a named sampler that these parameters ask for; None when it does nothing."""
    penalized = p.repeat_penalty != 1 or p.frequency_penalty != 0 or p.presence_penalty != 0
    on = {
        "penalties": p.repeat_last_n > 0 and penalized,
        "dry": p.dry_multiplier != 0 and p.dry_base >= 1 and p.dry_penalty_last_n > 0,
        "top_n_sigma": p.top_n_sigma > 0,
        "top_k": p.top_k > 0,
        "typ_p": p.typical_p < 1,
        "top_p": p.top_p < 1,
        "min_p": p.min_p > 0,
        "xtc": p.xtc_probability > 0 and p.xtc_threshold <= 0.5,
        "temperature": p.temperature != 1 or p.dynatemp_range > 0,
        "infill": True,
    }
    if not on.get(name, False):
        return None
    if name == "temperature":
        return _temperature(p)
    return "min_p_keep" if name == "min_p" and p.min_keep > 0 else name


def _temperature(p: SamplingParams) -> str:
    if p.dynatemp_range > 0:
        return "dynamic_temperature"
    return "temperature" if p.temperature > 0 else "zero_temperature"


def _greedy(filters: Sequence[str], params: SamplingParams) -> Signature | None:
    """The samplers that still matter when a chain is bound to take the best token, else None.

    That is so when nothing before a zero temperature (or a top-k of 1) can remove the best token or
    change logits after the list was cut.
    """
    matter: list[str] = []
    cut = False
    for name in filters:
        if name == "zero_temperature" or (name == "top_k" and params.top_k == 1):
            return tuple(matter)
        if name in _ADD and not cut:
            matter.append(name)
        elif name in _KEEP_THE_BEST:
            cut = True
        elif name != "temperature":
            return None
    return None
