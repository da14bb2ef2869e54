"""A completion request as understood: every field has its final value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlxserver.chat.request import CHAT_FORMATS
from mlxserver.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Names, meanings and defaults are those of llama-server's request fields."""

    sampling: SamplingParams = SamplingParams()
    id_slot: int = -1
    verbose: bool = False
    timings_per_token: bool = False
    stream: bool = False
    include_usage: bool = False
    cache_prompt: bool = True
    return_tokens: bool = False
    return_progress: bool = False
    sse_ping_interval: int = 30
    n_predict: int = -1
    n_indent: int = 0
    n_keep: int = 0
    n_discard: int = 0
    n_cmpl: int = 1
    n_cache_reuse: int = 0
    t_max_predict_ms: int = -1
    response_fields: tuple[str, ...] = ()
    backend_sampling: bool = False
    ignore_eos: bool = False
    lora: tuple[tuple[int, float], ...] = ()
    """(adapter id, scale) as the request lists them, ordered by id."""
    stop: tuple[str, ...] = ()
    grammar: str = ""
    grammar_lazy: bool = False
    grammar_triggers: tuple[dict[str, Any], ...] = ()
    preserved_tokens: frozenset[int] = frozenset()
    chat_format: str = CHAT_FORMATS[0]
    reasoning_format: str = "deepseek"
    generation_prompt: str = ""
    reasoning_control: bool = False
    reasoning_budget_tokens: int = -1
    reasoning_budget_start_tag: str = ""
    reasoning_budget_end_tags: tuple[str, ...] = ()
    reasoning_budget_message: str = ""
    speculative_types: str = "none"
    chat: ChatFields = field(default_factory=lambda: ChatFields())

    @property
    def reasoning_in_content(self) -> bool:
        return self.stream and self.reasoning_format == "deepseek-legacy"


@dataclass(frozen=True, slots=True)
class ChatFields:
    """What only the parser of a chat answer reads."""

    parse_tool_calls: bool = True
    chat_parser: str = ""
    continue_final_message: bool = False
    echo: bool = False
