"""Updates of a completion as its dialect gets them, made of pieces of text."""

from __future__ import annotations

from typing import Any

from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.generation import Delta, Result, Timings

TIMINGS = Timings(cache_n=2, prompt_n=5, prompt_ms=1.0, predicted_n=3, predicted_ms=2.0)


def delta(text: str, n_decoded: int = 1, **fields: Any) -> Delta:
    """One token's text, after a prompt of 7 tokens of which 2 were reused."""
    values: dict[str, Any] = {
        "index": 0,
        "token": 5,
        "n_prompt": 7,
        "n_cached": 2,
        "probs": None,
        "timings": None,
    }
    return Delta(text=text, n_decoded=n_decoded, **(values | fields))


def result(content: str, **fields: Any) -> Result:
    """The end of a completion that the model ended itself."""
    values: dict[str, Any] = {
        "index": 0,
        "tokens": (),
        "id_slot": 0,
        "n_decoded": 3,
        "n_prompt": 7,
        "n_cached": 2,
        "read_prompt": str,
        "has_new_line": False,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": 9,
        "timings": TIMINGS,
        "probs": (),
        "request": CompletionRequest(stream=True),
    }
    return Result(content=content, **(values | fields))


def played(dialect: Any, *pieces: str, **end: Any) -> list[Any]:
    """The events of a stream of these pieces."""
    events: list[Any] = []
    for number, piece in enumerate(pieces, start=1):
        events += dialect.events(delta(piece, number))
    return events + dialect.events(result("".join(pieces), **end))
