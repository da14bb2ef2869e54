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

Chunk = dict[str, Any]


class ChatDialect:
    """``/v1/chat/completions``. The content of an answer begins with ``prefill``, which the prompt holds."""

    done = "[DONE]"

    def __init__(self, request: CompletionRequest, model_name: str, prefill: str) -> None:
        self.id = completion_id()
        self.reasoning_control = request.reasoning_control
        self._include_usage = request.include_usage
        self._verbose = request.verbose
        self._model_name = model_name
        self._prefill = prefill
        is_explicit = request.chat.continue_final_message and not request.chat.echo
        self._unsent: defaultdict[int, str] = defaultdict(lambda: "" if is_explicit else prefill)

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
        choice: dict[str, Any] = {
            "finish_reason": "stop" if result.is_complete else "length",
            "index": result.index,
            "message": {"role": "assistant", "content": self._prefill + result.content},
        }
        if result.probs:
            choice["logprobs"] = {"content": prob_entries(result.probs)}
        return choice

    def _chunks(self, update: Delta | Progress) -> list[Chunk]:
        """What a token, or a part of the prompt, adds; extras stand in the last chunk."""
        is_first, text = (update.n_decoded == 1, update.text) if isinstance(update, Delta) else (True, "")
        chunks = []
        if is_first:
            chunks.append(self._chunk(update.index, {"role": "assistant", "content": None}))
        chunks += self._content(update.index, text)
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
        chunks = self._content(result.index, "")
        chunks.append(self._chunk(result.index, {}, "stop" if result.is_complete else "length"))
        if self._include_usage:
            usage = self._chunk(result.index, {})
            chunks.append(usage | {"choices": [], "usage": result.usage()})
        chunks[-1]["timings"] = result.timings.json()
        if self._verbose:
            chunks[0]["__verbose"] = native_result(result, self._model_name)
        return chunks

    def _content(self, index: int, text: str) -> list[Chunk]:
        """At most one chunk: what of the answer's content was not sent before."""
        unsent, self._unsent[index] = self._unsent[index] + text, ""
        return [self._chunk(index, {"content": unsent})] if unsent else []

    def _chunk(self, index: int, delta: dict[str, Any], finish_reason: str | None = None) -> Chunk:
        return {
            "choices": [{"finish_reason": finish_reason, "index": index, "delta": delta}],
            "created": int(time.time()),
            "id": self.id,
            "model": self._model_name,
            "system_fingerprint": BUILD_INFO,
            "object": "chat.completion.chunk",
        }
