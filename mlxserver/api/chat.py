"""``/v1/chat/completions`` and what belongs to it: prompts, token counts, control."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.aside import aside
from mlxserver.api.chat_json import ChatDialect
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.completion_runner import Completions, respond
from mlxserver.api.errors import invalid_request
from mlxserver.api.json_body import read_json
from mlxserver.api.json_response import json_response
from mlxserver.api.running_chat import RunningChat
from mlxserver.api.state import ServerState
from mlxserver.chat.formats.grammar import special_token_of
from mlxserver.chat.request import ChatRequest, ChatSettings, parse_chat


async def chat_completion(request: Request, state: ServerState) -> Response:
    """OpenAI's chat completions, with every native field as well."""
    body = await read_json(request)
    chat = await aside(request, lambda: read_chat(body, state))

    made: list[ChatDialect] = []

    def dialect(wanted: CompletionRequest) -> ChatDialect:
        made.append(ChatDialect(wanted, state.model_name, chat.rules))
        return made[0]

    def started(completions: Completions) -> None:
        running = RunningChat(completions, made[0].reasoning_control)
        made[0].running = running
        state.chats[made[0].id] = running

    return await respond(request, state, chat.fields, dialect, started)


async def apply_template(request: Request, state: ServerState) -> Response:
    """The prompt that a chat becomes."""
    body = await read_json(request)
    chat = await aside(request, lambda: read_chat(body, state))
    return json_response({"prompt": chat.prompt.text})


async def count_input_tokens(request: Request, state: ServerState) -> Response:
    """How many tokens a chat's prompt has, BOS included."""
    body = await read_json(request)
    n_tokens = await aside(request, lambda: count_tokens(body, state))
    return json_response({"input_tokens": n_tokens, "object": "response.input_tokens"})


async def control_chat(request: Request, state: ServerState) -> Response:
    """Ends the reasoning of a running completion that asked for ``reasoning_control``."""
    body = await read_json(request)
    fields = body if isinstance(body, dict) else {}
    completion_id = fields.get("id")
    if not isinstance(completion_id, str) or not completion_id:
        raise invalid_request("missing completion id")
    if fields.get("action") != "reasoning_end":
        raise invalid_request("unknown control action")
    running = state.chats.get(completion_id)
    if running is None:
        return json_response({"success": False, "message": "no active completion for this id"})
    if not running.reasoning_control:
        reason = "reasoning control not enabled for this completion"
        return json_response({"success": False, "message": reason})
    running.completions.end_reasoning()
    return json_response({"success": True})


def chat_settings(state: ServerState) -> ChatSettings:
    """The command line's say on chats; it thinks where the template can, unless it is told not to."""
    options = state.options
    return ChatSettings(
        use_jinja=options.jinja,
        prefill_assistant=options.prefill_assistant,
        enable_thinking=options.reasoning != "off" and options.jinja and state.template.supports_thinking,
        kwargs=dict(options.chat_template_kwargs),
        reasoning_format=options.reasoning_format,
        reasoning_budget=options.reasoning_budget,
        reasoning_budget_message=options.reasoning_budget_message,
        parses_answers=not options.skip_chat_parsing,
        special_token=special_token_of(state.model.tokenizer),
    )


def read_chat(body: Any, state: ServerState) -> ChatRequest:
    """The chat in a body of OpenAI's form. Raises ``ChatError``."""
    return parse_chat(body, state.template, chat_settings(state))


def count_tokens(body: Any, state: ServerState) -> int:
    """How many tokens the prompt of the chat in ``body`` has."""
    prompt = read_chat(body, state).prompt
    return len(state.model.tokenizer.encode(prompt.text, add_special=True, parse_special=True))
