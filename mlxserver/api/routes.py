"""Every route of llama-server b10621: one table, read by the server, its documentation and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxserver.api import (
    anthropic,
    chat,
    completions,
    embeddings,
    infill,
    lora,
    operations,
    rerank,
    responses,
    slot_actions,
    slots,
    streams,
    tokenize,
)
from mlxserver.api.unavailable import Handler, absent, disabled_feature, without

State = Literal["honoured", "deferred", "refused"]

PUBLIC_PATHS = frozenset(["/health", "/v1/health", "/", "/docs"])
"""Served without an API key, under exactly these paths."""


@dataclass(frozen=True, slots=True)
class Route:
    """``paths``: the route's name, then its aliases. ``note``: what differs, and why."""

    method: Literal["GET", "POST", "DELETE"]
    paths: tuple[str, ...]
    handler: Handler
    state: State = "honoured"
    note: str = ""
    takes: str = ""
    """Whose fields a request has, in the manifest of fields."""
    gives: str = ""
    """Whose fields an answer has; those of ``takes`` unless it says otherwise."""

    @property
    def needs_key(self) -> bool:
        return not PUBLIC_PATHS.issuperset(self.paths)

    def row(self) -> dict[str, object]:
        """The route's line in the compatibility manifest."""
        return {
            "method": self.method,
            "path": self.paths[0],
            "aliases": list(self.paths[1:]),
            "needs_key": self.needs_key,
            "state": self.state,
            "note": self.note,
        }


NO_AUDIO = "The current model does not support audio input."

ROUTER_ONLY = "only a router, a server started without a model, has it: 404 as llama-server with a model"
SERVER_TOOLS = "tools that the server runs; 403 as llama-server without them"

ROUTES = (
    Route("GET", ("/health", "/v1/health"), operations.health, gives="health"),
    Route("GET", ("/metrics",), operations.metrics),
    Route("GET", ("/props",), operations.props, gives="props"),
    Route("POST", ("/props",), operations.change_props, gives="success"),
    Route("GET", ("/models", "/v1/models"), operations.models, takes="model_list", gives="models"),
    Route("GET", ("/slots",), slots.slots, takes="slot_list"),
    Route("POST", ("/slots/{id_slot}",), slot_actions.slot_action, takes="slots"),
    Route("POST", ("/completion", "/completions"), completions.completion, takes="completion"),
    Route(
        "POST",
        ("/v1/completions",),
        completions.openai_completion,
        takes="completion",
        gives="text_completion",
    ),
    Route("POST", ("/chat/completions", "/v1/chat/completions"), chat.chat_completion, takes="chat"),
    Route("POST", ("/v1/chat/completions/control",), chat.control_chat, takes="control"),
    Route(
        "POST",
        ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
        chat.count_input_tokens,
        takes="chat",
        gives="input_tokens",
    ),
    Route("POST", ("/apply-template",), chat.apply_template, takes="chat", gives="prompt"),
    Route("POST", ("/tokenize",), tokenize.tokenize, takes="tokenize"),
    Route("POST", ("/detokenize",), tokenize.detokenize, takes="detokenize"),
    Route("GET", ("/v1/stream",), streams.read_stream, takes="stream"),
    Route("DELETE", ("/v1/stream",), streams.stop_stream, takes="stop_stream"),
    Route("POST", ("/v1/streams/lookup",), streams.lookup_streams, takes="streams"),
    Route("GET", ("/lora-adapters",), lora.lora_adapters, gives="lora"),
    Route("POST", ("/lora-adapters",), lora.set_lora_adapters, takes="lora", gives="success"),
    Route("POST", ("/infill",), infill.infill, takes="infill", gives="completion"),
    Route("POST", ("/responses", "/v1/responses"), responses.create_response, takes="responses"),
    Route(
        "POST",
        ("/responses/input_tokens", "/v1/responses/input_tokens"),
        responses.count_input_tokens,
        takes="responses",
        gives="input_tokens",
    ),
    Route("POST", ("/v1/messages",), anthropic.create_message, takes="anthropic"),
    Route(
        "POST",
        ("/v1/messages/count_tokens",),
        anthropic.count_input_tokens,
        takes="anthropic",
        gives="count_tokens",
    ),
    Route("POST", ("/embedding", "/embeddings"), embeddings.embeddings, takes="embeddings"),
    Route(
        "POST",
        ("/v1/embeddings",),
        embeddings.openai_embeddings,
        takes="embeddings",
        gives="openai_embeddings",
    ),
    Route("POST", ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"), rerank.rerank, takes="rerank"),
    Route(
        "POST",
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
        without(NO_AUDIO),
        "deferred",
        "501 as for a model that reads text only",
        takes="transcription",
    ),
    Route("GET", ("/tools",), disabled_feature, "deferred", SERVER_TOOLS, gives="tool_list"),
    Route("POST", ("/tools",), disabled_feature, "deferred", SERVER_TOOLS, takes="tool_call"),
    Route(
        "GET",
        ("/cors-proxy",),
        disabled_feature,
        "refused",
        "403 as llama-server without its proxy",
        takes="proxy",
    ),
    Route(
        "POST",
        ("/cors-proxy",),
        disabled_feature,
        "refused",
        "403 as llama-server without its proxy",
        takes="proxy",
    ),
    Route("GET", ("/", "/index.html"), absent, "refused", "no web page is shipped; 404 as with --no-ui"),
    Route("POST", ("/models",), absent, "deferred", ROUTER_ONLY, takes="model_load", gives="success"),
    Route("DELETE", ("/models",), absent, "deferred", ROUTER_ONLY, takes="model_list", gives="success"),
    Route("POST", ("/models/load",), absent, "deferred", ROUTER_ONLY, takes="model_load", gives="success"),
    Route("POST", ("/models/unload",), absent, "deferred", ROUTER_ONLY, takes="model_load", gives="success"),
    Route("GET", ("/models/sse",), absent, "deferred", ROUTER_ONLY, gives="model_event"),
)
