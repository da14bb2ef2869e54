"""The two dialects of text completions: llama.cpp's own and OpenAI's ``/v1/completions``."""

from __future__ import annotations

import time
from typing import Any

from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.errors import ApiError
from mlxserver.api.generation import Began, Delta, Progress, Result, Update
from mlxserver.api.generation_settings import generation_settings
from mlxserver.api.prob_json import prob_entries
from mlxserver.api.response_ids import BUILD_INFO, completion_id


class NativeDialect:
    """``/completion`` and ``/completions``."""

    done = None

    def __init__(self, request: CompletionRequest, model_name: str) -> None:
        self._model_name = model_name
        self._has_begun = False

    def events(self, update: Update) -> list[Any]:
        """The start of the first prompt has no event; that of each further one is ``null``."""
        match update:
            case Began():
                is_further, self._has_begun = self._has_begun, True
                return [None] if is_further else []
            case Result():
                return [native_result(update, self._model_name)]
            case _:
                return [native_partial(update)]

    def error(self, error: ApiError) -> Any:
        return error.body()

    def answer(self, results: list[Result]) -> Any:
        answers = [native_result(result, self._model_name) for result in results]
        return answers if len(answers) > 1 else answers[0]


class OpenAiCompletionDialect:
    """``/v1/completions``."""

    done = "[DONE]"

    def __init__(self, request: CompletionRequest, model_name: str) -> None:
        self._verbose = request.verbose
        self._model_name = model_name
        self._id = completion_id()

    def events(self, update: Update) -> list[Any]:
        match update:
            case Began():
                return []
            case Result():
                return [self._result(update)]
            case _:
                return [self._partial(update)]

    def error(self, error: ApiError) -> Any:
        return error.body()

    def answer(self, results: list[Result]) -> Any:
        """All choices in the object of the first result, which also gives the usage and the timings."""
        answer, *others = [self._result(result) for result in results]
        for other in others:
            answer["choices"] += other["choices"]
        return answer

    def _partial(self, update: Delta | Progress) -> dict[str, Any]:
        text, probs = (update.text, partial_probs(update)) if isinstance(update, Delta) else ("", [])
        chunk = self._envelope(update.index, text, probs, None)
        chunk["id"] = self._id
        if self._verbose:
            chunk["__verbose"] = native_partial(update)
        return chunk | _timings_and_progress(update)

    def _result(self, result: Result) -> dict[str, Any]:
        is_stream = result.request.stream
        probs = [] if is_stream else prob_entries(result.probs)
        finish_reason = "stop" if result.is_complete else "length"
        answer = self._envelope(result.index, "" if is_stream else result.content, probs, finish_reason)
        answer |= {"usage": result.usage(), "id": self._id}
        if self._verbose:
            answer["__verbose"] = native_result(result, self._model_name)
        answer["timings"] = result.timings.json()
        return answer

    def _envelope(
        self, index: int, text: str, probs: list[dict[str, Any]], finish_reason: str | None
    ) -> dict[str, Any]:
        choice = {
            "text": text,
            "index": index,
            "logprobs": {"content": probs} if probs else None,
            "finish_reason": finish_reason,
        }
        return {
            "choices": [choice],
            "created": int(time.time()),
            "model": self._model_name,
            "system_fingerprint": BUILD_INFO,
            "object": "text_completion",
        }


def native_partial(update: Delta | Progress) -> dict[str, Any]:
    """A stream's event for one token, or for a part of the prompt."""
    if isinstance(update, Progress):
        return _partial(update.index, "", 0, 0, update.total) | _timings_and_progress(update)
    event = _partial(update.index, update.text, update.token, update.n_decoded, update.n_prompt)
    event |= _timings_and_progress(update)
    if probs := partial_probs(update):
        event["completion_probabilities"] = probs
    return event


def partial_probs(update: Delta) -> list[dict[str, Any]]:
    """The one entry of a token's event, if there are candidates to show."""
    return prob_entries([update.probs]) if update.probs is not None and update.probs.top else []


def _partial(index: int, content: str, token: int, n_decoded: int, n_prompt: int) -> dict[str, Any]:
    return {
        "index": index,
        "content": content,
        "tokens": [token],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": n_decoded,
        "tokens_evaluated": n_prompt,
    }


def _timings_and_progress(update: Delta | Progress) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if update.timings is not None:
        found["timings"] = update.timings.json()
    if isinstance(update, Progress):
        found["prompt_progress"] = update.json()
    return found


def native_result(result: Result, model_name: str) -> dict[str, Any]:
    """The answer, or a stream's last event; only the ``response_fields`` where the request lists some."""
    is_stream = result.request.stream
    answer: dict[str, Any] = {
        "index": result.index,
        "content": "" if is_stream else result.content,
        "tokens": [] if is_stream else result.tokens,
        "id_slot": result.id_slot,
        "stop": True,
        "model": model_name,
        "tokens_predicted": result.n_decoded,
        "tokens_evaluated": result.n_prompt,
        "generation_settings": generation_settings(result.request),
        "prompt": result.read_prompt(),
        "has_new_line": result.has_new_line,
        "truncated": result.truncated,
        "stop_type": result.stop_type,
        "stopping_word": result.stopping_word,
        "tokens_cached": result.tokens_cached,
        "timings": result.timings.json(),
    }
    if result.probs and not is_stream:
        answer["completion_probabilities"] = prob_entries(result.probs)
    fields = result.request.response_fields
    return _nested_values(fields, answer) if fields else answer


def _nested_values(paths: tuple[str, ...], answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = answer
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found
