"""What a request gets that it does not set: the command line's values, else the model's own."""

from __future__ import annotations

from typing import Any

from mlxserver.api import logit_bias
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.grammar_fields import grammar_of
from mlxserver.api.json_body import float32
from mlxserver.models.model import Model
from mlxserver.options.samplers import samplers_by_name
from mlxserver.sampling.grammar.schema_words import compact
from mlxserver.sampling.params import Grammar, SamplingParams

MAX_VERBOSITY = 9

OPTION_OF_FIELD = {
    "seed": "seed",
    "temperature": "temp",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exponent": "dynatemp_exp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "top_n_sigma": "top_nsigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "typical_p": "typical",
    "repeat_last_n": "repeat_last_n",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "dry_sequence_breakers": "dry_sequence_breaker",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
    "adaptive_target": "adaptive_target",
    "adaptive_decay": "adaptive_decay",
    "samplers": "samplers",
}


def default_request(options: Any, model: Model) -> CompletionRequest:
    """The request whose every field is the server's default."""
    return CompletionRequest(
        sampling=default_sampling(options, model),
        ignore_eos=options.ignore_eos,
        verbose=options.verbosity > MAX_VERBOSITY,
        cache_prompt=options.cache_prompt,
        sse_ping_interval=options.sse_ping_interval,
        n_predict=options.n_predict,
        n_keep=options.keep,
        n_cache_reuse=options.cache_reuse,
        stop=tuple(options.reverse_prompt),
        backend_sampling=options.backend_sampling,
        reasoning_format=options.reasoning_format,
    )


def default_sampling(options: Any, model: Model) -> SamplingParams:
    """A value of the model's file counts where the command line does not give the option."""
    values = {name: getattr(options, option) for name, option in OPTION_OF_FIELD.items()}
    values |= {
        name: value
        for name, value in model.info.sampling_defaults.items()
        if name in OPTION_OF_FIELD and not options.given(OPTION_OF_FIELD[name])
    }
    values["samplers"] = samplers_by_name(values["samplers"])[0]
    biases = tuple((token, float32(bias)) for token, bias in options.logit_bias)
    if options.ignore_eos:
        biases += logit_bias.forbid_end(model.tokenizer)
    exact = {name: _exact(value) for name, value in values.items()}
    return SamplingParams(**exact, logit_bias=biases, grammar=default_grammar(options))


def default_grammar(options: Any) -> Grammar | None:
    """A grammar counts more than a schema, whichever comes last on the command line."""
    if options.grammar:
        return grammar_of(options.grammar)
    return None if options.json_schema is None else Grammar("json_schema", compact(options.json_schema))


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return float32(value)
    return tuple(value) if isinstance(value, list) else value
