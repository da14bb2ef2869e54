"""The fields of a completion request: one table, read in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from mlxserver.api import logit_bias, token_fields
from mlxserver.api.completion_request import ChatFields, CompletionRequest
from mlxserver.api.errors import ApiError, invalid_request
from mlxserver.api.field_types import (
    FLOAT_MAX,
    INT32_MAX,
    INT64_MAX,
    UNLIMITED,
    Reader,
    described,
    flag,
    integer,
    items_of,
    number,
    strings,
    strings_or_nothing,
    text,
    value_or,
)
from mlxserver.api.grammar_fields import read_grammar, shown, with_triggers
from mlxserver.api.json_body import parse_json
from mlxserver.api.lora_field import read_scales
from mlxserver.api.request_bounds import (
    MAX_BREAKERS,
    MAX_END_TAGS,
    MAX_N_PROBS,
    MAX_PRESERVED,
    MAX_RESPONSE_FIELDS,
    MAX_SAMPLERS,
    MAX_TRIGGERS,
    check_count,
    check_stops,
)
from mlxserver.chat.request import CHAT_FORMATS, REASONING_FORMATS
from mlxserver.models.model import Tokenizer
from mlxserver.options.samplers import samplers_by_letter, samplers_by_name
from mlxserver.sampling.params import Grammar, ReasoningBudget, SamplingParams


@dataclass(slots=True)
class Evaluation:
    """A request being read. ``values`` holds every field of the request and of its sampling parameters."""

    body: dict[str, Any]
    values: dict[str, Any]
    defaults: CompletionRequest
    tokenizer: Tokenizer
    n_slots: int


Handler = Callable[[Evaluation, Any], None]


@dataclass(frozen=True, slots=True)
class Field:
    """The first of ``names`` that is neither absent nor null is read, by ``read`` or by ``handle``."""

    names: tuple[str, ...]
    read: Reader | None = None
    handle: Handler | None = None

    def evaluate(self, state: Evaluation) -> None:
        for name in self.names:
            value = state.body.get(name)
            if value is not None:
                self._take(state, name, value)
                return

    def _take(self, state: Evaluation, name: str, value: Any) -> None:
        try:
            if self.handle is not None:
                self.handle(state, value)
            elif self.read is not None:
                state.values[self.names[0]] = self.read(value)
        except ValueError as error:
            raise invalid_request(f"Field '{name}': {error}") from None


def read_completion_request(
    body: dict[str, Any], defaults: CompletionRequest, tokenizer: Tokenizer, n_slots: int
) -> CompletionRequest:
    """``body`` with everything it leaves out taken from ``defaults``.

    Raises ``ApiError``: 400 for a bad field.
    """
    state = Evaluation(body, field_values(defaults), defaults, tokenizer, n_slots)
    for item in FIELDS:
        item.evaluate(state)
    state.values["id_slot"] = value_or(body, "id_slot", integer(), -1)
    return _build(state.values, tokenizer)


def field_values(request: CompletionRequest) -> dict[str, Any]:
    """Every field of ``request`` and of its sampling parameters, by its name."""
    sources: tuple[Any, ...] = (request, request.sampling, request.chat)
    return {item.name: getattr(source, item.name) for source in sources for item in fields(source)}


def _build(values: dict[str, Any], tokenizer: Tokenizer) -> CompletionRequest:
    def pick(cls: type[Any]) -> dict[str, Any]:
        return {item.name: values[item.name] for item in fields(cls)}

    grammar = _constraint(values)
    values["grammar"] = shown(grammar)
    constraints = {"grammar": grammar, "reasoning_budget": _budget(values, tokenizer)}
    values["sampling"] = SamplingParams(**pick(SamplingParams) | constraints)
    values["chat"] = ChatFields(**pick(ChatFields))
    return CompletionRequest(**pick(CompletionRequest))


def _constraint(values: dict[str, Any]) -> Grammar | None:
    try:
        return with_triggers(values["grammar"], values["grammar_lazy"], values["grammar_triggers"])
    except ValueError as error:
        raise invalid_request(f"Field 'grammar_triggers': {error}") from None


def _budget(values: dict[str, Any], tokenizer: Tokenizer) -> ReasoningBudget | None:
    """None where reasoning has no bound, cannot be ended and holds no lazy grammar back."""
    start, ends = values["reasoning_budget_start_tag"], values["reasoning_budget_end_tags"]
    tokens, control = values["reasoning_budget_tokens"], values["reasoning_control"]
    if not (start and ends and (tokens >= 0 or control or values["grammar_lazy"])):
        return None

    def encoded(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, parse_special=True)) if text else ()

    return ReasoningBudget(
        start=encoded(start),
        ends=tuple(encoded(end) for end in ends),
        forced=encoded(values["reasoning_budget_message"]) + encoded(ends[0]),
        tokens=tokens,
        prefill=encoded(values["generation_prompt"]),
    )


def _stream_options(state: Evaluation, value: Any) -> None:
    if isinstance(value, dict) and value.get("include_usage") is not None:
        try:
            state.values["include_usage"] = flag(value["include_usage"])
        except ValueError as error:
            raise invalid_request(f"Field 'include_usage': {error}") from None


def _n_cmpl(state: Evaluation, value: Any) -> None:
    state.values["n_cmpl"] = integer(hard=(1, state.n_slots))(value)


def _dry_base(state: Evaluation, value: Any) -> None:
    base = number(soft=(-UNLIMITED, UNLIMITED))(value)
    state.values["dry_base"] = state.defaults.sampling.dry_base if base < 1.0 else base


def _dry_sequence_breakers(state: Evaluation, value: Any) -> None:
    check_count(value, MAX_BREAKERS)
    breakers = strings_or_nothing(value)
    if not breakers:
        raise ValueError("Error: dry_sequence_breakers must be a non-empty array of strings")
    state.values["dry_sequence_breakers"] = breakers


def _lora(state: Evaluation, value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError("Error: 'lora' must be an array of objects with 'id' and 'scale' fields")
    state.values["lora"] = tuple(sorted(read_scales(value).items()))


def _grammar(state: Evaluation, value: Any) -> None:
    state.values["grammar"] = read_grammar(state.body) or state.values["grammar"]


def _chat_format(state: Evaluation, value: Any) -> None:
    index = integer()(value)
    if not 0 <= index < len(CHAT_FORMATS):
        raise ValueError("Unknown chat format")
    state.values["chat_format"] = CHAT_FORMATS[index]


def _reasoning_format(state: Evaluation, value: Any) -> None:
    name = text(value)
    if name not in REASONING_FORMATS:
        raise ValueError(f"Unknown reasoning format: {name}")
    state.values["reasoning_format"] = name


@described(type="string")
def _chat_parser(value: Any) -> str:
    try:
        parse_json(text(value).encode())
    except ApiError as error:
        raise ValueError(error.message) from None
    return str(value)


def _continue_final_message(state: Evaluation, value: Any) -> None:
    state.values["continue_final_message"] = value is True or value in ("content", "reasoning_content")


def _reasoning_end_tags(state: Evaluation, value: Any) -> None:
    check_count(value, MAX_END_TAGS)
    tags = items_of(value) if "reasoning_budget_end_tags" in state.body else [value]
    state.values["reasoning_budget_end_tags"] = tuple(tag for tag in strings(tags) if tag)


def _preserved_tokens(state: Evaluation, value: Any) -> None:
    check_count(value, MAX_PRESERVED)
    state.values["preserved_tokens"] = token_fields.preserved_tokens(value, state.tokenizer)


def _grammar_triggers(state: Evaluation, value: Any) -> None:
    check_count(value, MAX_TRIGGERS)
    triggers = token_fields.grammar_triggers(value, state.tokenizer, state.values["preserved_tokens"])
    if state.values["grammar_lazy"] and not triggers:
        raise ValueError("Error: no triggers set for lazy grammar!")
    state.values["grammar_triggers"] = triggers


def _logit_bias(state: Evaluation, value: Any) -> None:
    state.values["logit_bias"] = logit_bias.read(value, state.tokenizer)


def _ignore_eos(state: Evaluation, value: Any) -> None:
    state.values["ignore_eos"] = flag(value)
    if value:
        state.values["logit_bias"] += logit_bias.forbid_end(state.tokenizer)


def _reasoning_budget_message(state: Evaluation, value: Any) -> None:
    """Another type than a text counts as absent."""
    if isinstance(value, str):
        state.values["reasoning_budget_message"] = value


def _response_fields(state: Evaluation, value: Any) -> None:
    check_count(value, MAX_RESPONSE_FIELDS)
    state.values["response_fields"] = strings_or_nothing(value)


def _stop(state: Evaluation, value: Any) -> None:
    words: tuple[str, ...] = ()
    if isinstance(value, list):
        words = tuple(text(word) for word in value if word not in (None, [], {}))
    elif isinstance(value, str):
        words = (value,)
    check_stops(words)
    state.values["stop"] = words or state.defaults.stop


def _samplers(state: Evaluation, value: Any) -> None:
    check_count(list(value) if isinstance(value, str) else value, MAX_SAMPLERS)
    if isinstance(value, list):
        state.values["samplers"] = samplers_by_name(strings(value))[0]
    elif isinstance(value, str):
        state.values["samplers"] = samplers_by_letter(value)[0]


_COUNT = integer(hard=(0, INT32_MAX))
_COUNT_OR_MINUS_ONE = integer(hard=(-1, INT32_MAX))
_UNIT = number(soft=(0.0, 1.0))
_NUMBER = number()

FIELDS = (
    Field(("verbose",), flag),
    Field(("timings_per_token",), flag),
    Field(("stream",), flag),
    Field(("stream_options",), handle=_stream_options),
    Field(("cache_prompt",), flag),
    Field(("return_tokens",), flag),
    Field(("return_progress",), flag),
    Field(("sse_ping_interval",), _COUNT_OR_MINUS_ONE),
    Field(("n_predict", "max_completion_tokens", "max_tokens"), _COUNT_OR_MINUS_ONE),
    Field(("n_indent",), _COUNT),
    Field(("n_keep",), _COUNT_OR_MINUS_ONE),
    Field(("n_discard",), _COUNT),
    Field(("n_cmpl", "n"), handle=_n_cmpl),
    Field(("n_cache_reuse",), _COUNT),
    Field(("t_max_predict_ms",), integer(hard=(-1, INT64_MAX), bits=64, booleans=False)),
    Field(("response_fields",), handle=_response_fields),
    Field(("top_k",), integer(soft=(0, INT32_MAX))),
    Field(("top_p",), _UNIT),
    Field(("min_p",), _UNIT),
    Field(("top_n_sigma",), _NUMBER),
    Field(("xtc_probability",), _UNIT),
    Field(("xtc_threshold",), _UNIT),
    Field(("typical_p",), _NUMBER),
    Field(("temperature",), number(soft=(0.0, UNLIMITED))),
    Field(("dynatemp_range",), _NUMBER),
    Field(("dynatemp_exponent",), _NUMBER),
    Field(("repeat_last_n",), _COUNT),
    Field(("repeat_penalty",), _NUMBER),
    Field(("frequency_penalty",), _NUMBER),
    Field(("presence_penalty",), _NUMBER),
    Field(("dry_multiplier",), _NUMBER),
    Field(("dry_base",), handle=_dry_base),
    Field(("dry_allowed_length",), _COUNT),
    Field(("dry_penalty_last_n",), _COUNT),
    Field(("mirostat",), integer(soft=(0, 2))),
    Field(("mirostat_tau",), _NUMBER),
    Field(("mirostat_eta",), _NUMBER),
    Field(("adaptive_target",), number(soft=(-FLOAT_MAX, 1.0))),
    Field(("adaptive_decay",), number(hard=(0.0, 0.99))),
    Field(("seed",), integer(signed=False)),
    Field(("n_probs", "logprobs"), integer(hard=(-INT32_MAX - 1, MAX_N_PROBS))),
    Field(("min_keep",), _COUNT),
    Field(("backend_sampling",), flag),
    Field(("post_sampling_probs",), flag),
    Field(("lora",), handle=_lora),
    Field(("dry_sequence_breakers",), handle=_dry_sequence_breakers),
    Field(("json_schema", "grammar"), handle=_grammar),
    Field(("grammar_lazy",), flag),
    Field(("chat_format",), handle=_chat_format),
    Field(("reasoning_format",), handle=_reasoning_format),
    Field(("generation_prompt",), text),
    Field(("parse_tool_calls",), flag),
    Field(("chat_parser",), _chat_parser),
    Field(("continue_final_message",), handle=_continue_final_message),
    Field(("echo",), flag),
    Field(("preserved_tokens",), handle=_preserved_tokens),
    Field(("grammar_triggers",), handle=_grammar_triggers),
    Field(("reasoning_control",), flag),
    Field(("reasoning_budget_tokens",), _COUNT_OR_MINUS_ONE),
    Field(("reasoning_budget_start_tag",), text),
    Field(("reasoning_budget_end_tags", "reasoning_budget_end_tag"), handle=_reasoning_end_tags),
    Field(("reasoning_budget_message",), handle=_reasoning_budget_message),
    Field(("logit_bias",), handle=_logit_bias),
    Field(("ignore_eos",), handle=_ignore_eos),
    Field(("stop",), handle=_stop),
    Field(("samplers",), handle=_samplers),
)
