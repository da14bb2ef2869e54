"""Health, properties, models and metrics of the server."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import not_supported
from mlxserver.api.generation_settings import default_settings
from mlxserver.api.json_response import json_response
from mlxserver.api.response_ids import BUILD_INFO
from mlxserver.api.state import ServerState

MEDIA_MARKER = "<__media__>"


async def health(request: Request, state: ServerState) -> Response:
    """Whether requests can be answered; 503 until the model is loaded."""
    return json_response({"status": "ok"})


async def props(request: Request, state: ServerState) -> Response:
    """What the server runs and with which defaults."""
    options, info, template = state.options, state.model.info, state.template
    answer: dict[str, Any] = {
        "default_generation_settings": {
            "params": default_settings(options, state.model),
            "n_ctx": state.engine.n_ctx,
        },
        "total_slots": state.engine.n_slots,
        "model_alias": state.model_name,
        "model_ftype": info.ftype,
        "model_path": info.path,
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": info.media_marker or MEDIA_MARKER,
        "endpoint_slots": options.slots,
        "endpoint_props": options.props,
        "endpoint_metrics": options.metrics,
        "ui": options.ui,
        "ui_settings": dict(options.ui_config),
        "chat_template": template.source,
        "chat_template_caps": template.capabilities.json(),
        "bos_token": info.bos_text,
        "eos_token": info.eos_text,
        "build_info": BUILD_INFO,
        "is_sleeping": False,
        "cors_proxy_enabled": False,
    }
    if template.tool_use_source:
        answer["chat_template_tool_use"] = template.tool_use_source
    return json_response(answer)


async def change_props(request: Request, state: ServerState) -> Response:
    """llama-server allows this with ``--props``, and changes nothing."""
    if not state.options.props:
        raise _not_started_with("changing global properties", "--props")
    return json_response({"success": True})


async def models(request: Request, state: ServerState) -> Response:
    """The one model, in Ollama's and in OpenAI's form."""
    return json_response({"models": [_ollama_model(state)], "object": "list", "data": [_openai_model(state)]})


async def metrics(request: Request, state: ServerState) -> Response:
    """Prometheus' text format."""
    from mlxserver.telemetry.metrics import CONTENT_TYPE

    if state.metrics is None:
        raise _not_started_with("metrics endpoint", "--metrics")
    text = state.metrics.render(state.engine.snapshot(), state.adapters.ids())
    headers = {"Process-Start-Time-Unix": str(state.started_us), "Content-Type": CONTENT_TYPE}
    return Response(text.encode(), headers=headers)


def _not_started_with(what: str, option: str) -> Exception:
    return not_supported(f"This server does not support {what}. Start it with `{option}`")


def _ollama_model(state: ServerState) -> dict[str, Any]:
    return {
        "name": state.model_name,
        "model": state.model_name,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _openai_model(state: ServerState) -> dict[str, Any]:
    info = state.model.info
    return {
        "id": state.model_name,
        "aliases": state.aliases,
        "tags": sorted(state.options.tags),
        "object": "model",
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {
            "vocab_type": True,
            "n_vocab": info.n_vocab,
            "n_ctx": state.engine.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_params": info.n_params,
            "size": info.size,
            "ftype": info.ftype,
        },
    }
