"""The ``generation_settings`` that answers, ``/slots`` and ``/props`` show."""

from __future__ import annotations

from typing import Any

from mlxserver.api.completion_defaults import default_sampling
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.models.model import Model

ONLY_IN_ANSWERS = (
    "dry_sequence_breakers",
    "stop",
    "logit_bias",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
)


def generation_settings(request: CompletionRequest) -> dict[str, Any]:
    """Every setting, in the order of llama-server's answers."""
    sampling = request.sampling
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": sampling.dry_sequence_breakers,
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "adaptive_target": sampling.adaptive_target,
        "adaptive_decay": sampling.adaptive_decay,
        "stop": request.stop,
        "max_tokens": request.n_predict,
        "n_predict": request.n_predict,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "ignore_eos": request.ignore_eos,
        "stream": request.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
        "n_probs": sampling.n_probs,
        "min_keep": sampling.min_keep,
        "grammar": request.grammar,
        "grammar_lazy": request.grammar_lazy,
        "grammar_triggers": request.grammar_triggers,
        "preserved_tokens": sorted(request.preserved_tokens),
        "chat_format": request.chat_format,
        "reasoning_format": request.reasoning_format,
        "reasoning_in_content": request.reasoning_in_content,
        "generation_prompt": request.generation_prompt,
        "samplers": sampling.samplers,
        "speculative.types": request.speculative_types,
        "timings_per_token": request.timings_per_token,
        "post_sampling_probs": request.sampling.post_sampling_probs,
        "backend_sampling": request.backend_sampling,
        "lora": [{"id": adapter, "scale": scale} for adapter, scale in request.lora],
    }


def short_settings(request: CompletionRequest) -> dict[str, Any]:
    """What ``/slots`` and ``/props`` show: no texts, no lists of tokens."""
    settings = generation_settings(request)
    for name in ONLY_IN_ANSWERS:
        del settings[name]
    return settings


def default_settings(options: Any, model: Model) -> dict[str, Any]:
    """``/props``: the command line's sampling beside fixed values of everything else."""
    sampling = default_sampling(options, model)
    return short_settings(
        CompletionRequest(sampling=sampling, ignore_eos=options.ignore_eos, reasoning_format="none")
    )
