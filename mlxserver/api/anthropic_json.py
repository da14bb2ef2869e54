"""Anthropic's messages as JSON: plain answers and stream events."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from typing import Any

from mlxserver.api.errors import ApiError
from mlxserver.api.generation import Delta, Result, Update
from mlxserver.api.response_ids import completion_id
from mlxserver.api.sse_frame import NamedEvent
from mlxserver.chat.answer_deltas import AnswerDelta, CallArguments, CallBegin, Content, Reasoning
from mlxserver.chat.answer_parser import AnswerParser, AnswerRules
from mlxserver.chat.messages import ToolCall


class AnthropicDialect:
    """``/v1/messages``; it never has more than one completion. ``stop_sequences``: the client's own."""

    done = None

    def __init__(self, rules: AnswerRules, model_name: str, stop_sequences: Sequence[str]) -> None:
        self.id = completion_id()
        self._parser = AnswerParser(rules)
        self._model_name = model_name
        self._stop_sequences = frozenset(stop_sequences)
        self._has_begun = False
        self._blocks: dict[Hashable, int] = {}
        """The index of each open block, by what makes it one: thinking, text, or a call's number."""

    def events(self, update: Update) -> list[Any]:
        match update:
            case Delta():
                begin = self._begin(update)
                return begin + self._deltas(self._parser.feed(update.text))
            case Result():
                return self._last_events(update)
            case _:
                return []

    def error(self, error: ApiError) -> Any:
        return NamedEvent("error", error.body()["error"])

    def answer(self, results: list[Result]) -> Any:
        result = results[0]
        self._parser.feed(result.content)
        self._parser.finish(result.is_complete)
        message = self._parser.answer
        content: list[dict[str, Any]] = []
        if message.reasoning_content:
            content.append({"type": "thinking", "thinking": message.reasoning_content, "signature": ""})
        if message.content:
            content.append({"type": "text", "text": message.content})
        content += [_tool_use(call) for call in message.tool_calls]
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model_name,
            **self._stop(result, bool(message.tool_calls)),
            "usage": _prompt_usage(result) | {"output_tokens": result.n_decoded},
        }

    def _stop(self, result: Result, calls_tools: bool) -> dict[str, Any]:
        word = result.stopping_word
        if not result.is_complete:
            reason = "max_tokens"
        elif calls_tools:
            reason = "tool_use"
        else:
            reason = "stop_sequence" if word in self._stop_sequences else "end_turn"
        return {"stop_reason": reason, "stop_sequence": word or None}

    def _begin(self, update: Delta | Result) -> list[NamedEvent]:
        if self._has_begun:
            return []
        self._has_begun = True
        message: dict[str, Any] = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model_name,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _prompt_usage(update) | {"output_tokens": 0},
        }
        return [_event("message_start", message=message)]

    def _deltas(self, deltas: list[AnswerDelta]) -> list[NamedEvent]:
        return [event for delta in deltas for event in self._delta(delta)]

    def _delta(self, delta: AnswerDelta) -> list[NamedEvent]:
        match delta:
            case Reasoning():
                opened = {"type": "thinking", "thinking": ""}
                return self._block("thinking", opened, {"type": "thinking_delta", "thinking": delta.text})
            case Content():
                opened = {"type": "text", "text": ""}
                return self._block("text", opened, {"type": "text_delta", "text": delta.text})
            case CallBegin():
                return self._block(delta.index, {"type": "tool_use", "id": delta.id, "name": delta.name})
            case CallArguments():
                added = {"type": "input_json_delta", "partial_json": delta.text}
                return self._block(delta.index, {}, added)

    def _block(
        self, key: Hashable, opened: dict[str, Any], added: dict[str, Any] | None = None
    ) -> list[NamedEvent]:
        """What ``added`` is to a block, which begins with ``opened`` if it is new."""
        events = []
        if key not in self._blocks:
            self._blocks[key] = len(self._blocks)
            events.append(_event("content_block_start", index=self._blocks[key], content_block=opened))
        if added is not None:
            events.append(_event("content_block_delta", index=self._blocks[key], delta=added))
        return events

    def _last_events(self, result: Result) -> list[NamedEvent]:
        """Blocks end here only; llama-server's clients know them so."""
        events = self._begin(result) + self._deltas(self._parser.finish(result.is_complete))
        for key, index in self._blocks.items():
            if key == "thinking":
                signature = {"type": "signature_delta", "signature": ""}
                events.append(_event("content_block_delta", index=index, delta=signature))
            events.append(_event("content_block_stop", index=index))
        stop = self._stop(result, bool(self._parser.answer.tool_calls))
        events.append(_event("message_delta", delta=stop, usage={"output_tokens": result.n_decoded}))
        return [*events, _event("message_stop")]


def _event(name: str, **data: Any) -> NamedEvent:
    return NamedEvent(name, {"type": name, **data})


def _prompt_usage(update: Delta | Result) -> dict[str, int]:
    n_new = update.n_prompt - update.n_cached
    return {"cache_read_input_tokens": update.n_cached, "input_tokens": n_new}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    """Arguments that were cut off are no JSON: none then."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
