"""OpenAI's responses as JSON: plain answers and stream events."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from mlxserver.api.errors import ApiError
from mlxserver.api.generation import Began, Delta, Progress, Result, Update
from mlxserver.api.response_ids import random_id
from mlxserver.api.sse_frame import NamedEvent
from mlxserver.chat.answer_deltas import AnswerDelta, CallArguments, CallBegin, Content, Reasoning
from mlxserver.chat.answer_parser import AnswerParser, AnswerRules
from mlxserver.chat.messages import ToolCall

Fields = dict[str, Any]


class ResponsesDialect:
    """``/v1/responses``. Several completions of one request are responses of their own."""

    done = None

    def __init__(self, rules: AnswerRules, model_name: str) -> None:
        self._responses: defaultdict[int, _Response] = defaultdict(lambda: _Response(rules, model_name))

    def events(self, update: Update) -> list[Any]:
        response = self._responses[update.index]
        match update:
            case Began():
                return []
            case Result():
                return response.last_events(update)
            case _:
                return response.events(update)

    def error(self, error: ApiError) -> Any:
        return error.body()

    def answer(self, results: list[Result]) -> Any:
        answers = [self._responses[result.index].answer(result) for result in results]
        return answers if len(answers) > 1 else answers[0]


class _Response:
    """One response: a thought, a message and calls, each an item of its output."""

    def __init__(self, rules: AnswerRules, model_name: str) -> None:
        self._parser = AnswerParser(rules)
        self._model_name = model_name
        self._id = f"resp_{random_id()}"
        self._reasoning_id = f"rs_{random_id()}"
        self._message_id = f"msg_{random_id()}"
        self._call_ids: dict[int, str] = {}
        self._has_begun = self._has_reasoning = self._has_message = False

    def answer(self, result: Result) -> Fields:
        self._parser.feed(result.content)
        self._parser.finish(result.is_complete)
        now = int(time.time())
        return {
            "completed_at": now,
            "created_at": now,
            "id": self._id,
            "model": self._model_name,
            "object": "response",
            "output": self._output(reasoning_status={"status": "completed"}),
            "status": "completed",
            "usage": _usage(result),
        }

    def events(self, update: Delta | Progress) -> list[NamedEvent]:
        """What a token, or a part of the prompt, adds; extras stand in the last event."""
        events = self._begin(is_progress=isinstance(update, Progress))
        events += self._deltas(self._parser.feed(update.text if isinstance(update, Delta) else ""))
        if events:
            _add_extras(events[-1].data, update)
        return events

    def last_events(self, result: Result) -> list[NamedEvent]:
        """Every item ends here, then the response, which holds them all."""
        events = self._begin() + self._deltas(self._parser.finish(result.is_complete))
        output = self._output()
        for item in output:
            if item["type"] == "message":
                part = item["content"][0]
                events.append(_event("output_text.done", item_id=item["id"], text=part["text"]))
                events.append(_event("content_part.done", item_id=item["id"], part=part))
            events.append(_event("output_item.done", item=item))
        completed = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "completed",
            "model": self._model_name,
            "output": output,
            "usage": _usage(result),
        }
        events.append(_event("completed", response=completed, timings=result.timings.json()))
        return events

    def _begin(self, is_progress: bool = False) -> list[NamedEvent]:
        names = [] if self._has_begun else ["created"]
        if is_progress or not self._has_begun:
            names.append("in_progress")
        self._has_begun = True
        shown = {"id": self._id, "object": "response", "status": "in_progress"}
        return [_event(name, response=shown) for name in names]

    def _deltas(self, deltas: list[AnswerDelta]) -> list[NamedEvent]:
        return [event for delta in deltas for event in self._delta(delta)]

    def _delta(self, delta: AnswerDelta) -> list[NamedEvent]:
        match delta:
            case Reasoning():
                return self._reasoning(delta.text)
            case Content():
                return self._text(delta.text)
            case CallBegin():
                self._call_ids[delta.index] = f"fc_{delta.id}"
                call = _function_call(ToolCall(delta.name, "", delta.id), "in_progress")
                return [_event("output_item.added", item=call)]
            case CallArguments():
                item_id = self._call_ids[delta.index]
                return [_event("function_call_arguments.delta", delta=delta.text, item_id=item_id)]

    def _reasoning(self, text: str) -> list[NamedEvent]:
        events = []
        if not self._has_reasoning:
            self._has_reasoning = True
            item = _reasoning_item(self._reasoning_id, []) | {"status": "in_progress"}
            events.append(_event("output_item.added", item=item))
        return [*events, _event("reasoning_text.delta", delta=text, item_id=self._reasoning_id)]

    def _text(self, text: str) -> list[NamedEvent]:
        events = []
        if not self._has_message:
            self._has_message = True
            item, part = _message(self._message_id, []), {"type": "output_text", "text": ""}
            item["status"] = "in_progress"
            events.append(_event("output_item.added", item=item))
            events.append(_event("content_part.added", item_id=self._message_id, part=part))
        return [*events, _event("output_text.delta", item_id=self._message_id, delta=text)]

    def _output(self, reasoning_status: Fields | None = None) -> list[Fields]:
        """The items that are not empty; in a stream the thought's has no status."""
        answer = self._parser.answer
        output = []
        if answer.reasoning_content:
            content = [{"text": answer.reasoning_content, "type": "reasoning_text"}]
            output.append(_reasoning_item(self._reasoning_id, content) | (reasoning_status or {}))
        if answer.content:
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": answer.content}
            output.append(_message(self._message_id, [part]))
        return output + [_function_call(call, "completed") for call in answer.tool_calls]


def _event(name: str, **data: Any) -> NamedEvent:
    return NamedEvent(f"response.{name}", {"type": f"response.{name}", **data})


def _reasoning_item(item_id: str, content: list[Fields]) -> Fields:
    return {"id": item_id, "summary": [], "type": "reasoning", "content": content, "encrypted_content": ""}


def _message(item_id: str, content: list[Fields]) -> Fields:
    return {
        "content": content,
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }


def _function_call(call: ToolCall, status: str) -> Fields:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": status,
        "arguments": call.arguments,
        "call_id": f"call_{call.id}",
        "name": call.name,
    }


def _usage(result: Result) -> Fields:
    return {
        "input_tokens": result.n_prompt,
        "output_tokens": result.n_decoded,
        "total_tokens": result.n_prompt + result.n_decoded,
        "input_tokens_details": {"cached_tokens": result.n_cached},
    }


def _add_extras(data: Fields, update: Delta | Progress) -> None:
    if update.timings is not None:
        data["timings"] = update.timings.json()
    if isinstance(update, Progress):
        data["prompt_progress"] = update.json()
