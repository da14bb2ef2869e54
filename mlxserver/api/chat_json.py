"""OpenAI's chat completions as JSON: plain answers and stream chunks."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from mlxserver.api.completion_json import native_result, partial_probs
from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.errors import ApiError
from mlxserver.api.generation import Began, Delta, Progress, Result, Update
from mlxserver.api.prob_json import prob_entries
from mlxserver.api.response_ids import BUILD_INFO, completion_id
from mlxserver.api.running_chat import RunningChat
from mlxserver.chat.answer_deltas import Answer, AnswerDelta, CallArguments, CallBegin, Content, Reasoning
from mlxserver.chat.answer_parser import AnswerParser, AnswerRules

Chunk = dict[str, Any]


class ChatDialect:
    """``/v1/chat/completions``. ``rules`` tell content, reasoning and tool calls in an answer's text."""

    done = "[DONE]"

    def __init__(self, request: CompletionRequest, model_name: str, rules: AnswerRules) -> None:
        self.id = completion_id()
        self.reasoning_control = request.reasoning_control
        self.running: RunningChat | None = None
        self._include_usage = request.include_usage
        self._verbose = request.verbose
        self._model_name = model_name
        self._parsers: defaultdict[int, AnswerParser] = defaultdict(lambda: AnswerParser(rules))

    def events(self, update: Update) -> list[Any]:
        match update:
            case Began():
                return []
            case Result():
                return self._last_chunks(update)
            case _:
                return self._chunks(update)

    def error(self, error: ApiError) -> Any:
        return error.body()

    def answer(self, results: list[Result]) -> Any:
        """All choices in the object of the first result, which also gives the usage and the timings."""
        first = results[0]
        answer = {
            "choices": [self._choice(result) for result in results],
            "created": int(time.time()),
            "model": self._model_name,
            "system_fingerprint": BUILD_INFO,
            "object": "chat.completion",
            "usage": first.usage(),
            "id": self.id,
        }
        if self._verbose:
            answer["__verbose"] = native_result(first, self._model_name)
        return answer | {"timings": first.timings.json()}

    def _choice(self, result: Result) -> dict[str, Any]:
        parser = self._parsers[result.index]
        parser.feed(result.content)
        parser.finish(result.is_complete)
        choice: dict[str, Any] = {
            "finish_reason": self._finish_reason(result),
            "index": result.index,
            "message": _message(parser.answer, result.content),
        }
        if result.probs:
            choice["logprobs"] = {"content": prob_entries(result.probs)}
        return choice

    def _finish_reason(self, result: Result) -> str:
        if not result.is_complete:
            return "length"
        return "tool_calls" if self._parsers[result.index].answer.tool_calls else "stop"

    def _chunks(self, update: Delta | Progress) -> list[Chunk]:
        """What a token, or a part of the prompt, adds; extras stand in the last chunk."""
        is_first, text = (update.n_decoded == 1, update.text) if isinstance(update, Delta) else (True, "")
        chunks = []
        if is_first:
            chunks.append(self._chunk(update.index, {"role": "assistant", "content": None}))
        chunks += self._answer_chunks(update.index, self._parsers[update.index].feed(text))
        if chunks:
            self._add_extras(chunks[-1], update)
        return chunks

    def _add_extras(self, chunk: Chunk, update: Delta | Progress) -> None:
        if isinstance(update, Delta) and (probs := partial_probs(update)):
            chunk["choices"][0]["logprobs"] = {"content": probs}
        if update.timings is not None:
            chunk["timings"] = update.timings.json()
        if isinstance(update, Progress):
            chunk["prompt_progress"] = update.json()

    def _last_chunks(self, result: Result) -> list[Chunk]:
        chunks = self._answer_chunks(result.index, self._parsers[result.index].finish(result.is_complete))
        chunks.append(self._chunk(result.index, {}, self._finish_reason(result)))
        if self._include_usage:
            usage = self._chunk(result.index, {})
            chunks.append(usage | {"choices": [], "usage": result.usage()})
        chunks[-1]["timings"] = result.timings.json()
        if self._verbose:
            chunks[0]["__verbose"] = native_result(result, self._model_name)
        return chunks

    def _answer_chunks(self, index: int, deltas: list[AnswerDelta]) -> list[Chunk]:
        return [self._chunk(index, delta) for delta in delta_objects(deltas)]

    def _chunk(self, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Chunk:
        return {
            "choices": [{"finish_reason": finish_reason, "index": index, "delta": delta}],
            "created": int(time.time()),
            "id": self.id,
            "model": self._model_name,
            "system_fingerprint": BUILD_INFO,
            "object": "chat.completion.chunk",
        }


def delta_objects(deltas: list[AnswerDelta]) -> list[dict[str, Any]]:
    """One object a delta; a call that begins takes the opening brace of its arguments along."""
    found: list[dict[str, Any]] = []
    begun: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        match delta:
            case Content():
                found.append({"content": delta.text})
            case Reasoning():
                found.append({"reasoning_content": delta.text})
            case CallBegin():
                begun[delta.index] = {"name": delta.name}
                call = {"index": delta.index, "id": delta.id, "type": "function"}
                found.append({"tool_calls": [call | {"function": begun[delta.index]}]})
            case CallArguments():
                text = delta.text
                if delta.index in begun:
                    begun.pop(delta.index)["arguments"], text = text[:1], text[1:]
                if text:
                    call = {"index": delta.index, "function": {"arguments": text}}
                    found.append({"tool_calls": [call]})
    return found


def _message(answer: Answer, text: str) -> dict[str, Any]:
    """An answer in which nothing was found, such as the beginning of a call that was cut, is its text."""
    content = text if answer.is_empty else answer.content
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if answer.reasoning_content:
        message["reasoning_content"] = answer.reasoning_content
    if answer.tool_calls:
        message["tool_calls"] = [call.json() for call in answer.tool_calls]
    return message
