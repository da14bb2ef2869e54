"""What running completions report, whatever dialect shapes it: typed updates, one list per engine step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.errors import ApiError
from mlxserver.chat.text_stream import StopType


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and milliseconds of one completion so far; ``json()`` has the rates too."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    cache_disk_n: int | None = None
    """Of ``cache_n`` those that came from the disk tier; None without one."""

    def json(self) -> dict[str, Any]:
        """The ``timings`` object in its key order. The first token is free: rates leave it out."""
        steps = max(self.predicted_n - 1, 0)
        timings: dict[str, Any] = {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": 1e3 * _ratio(self.prompt_n, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, steps),
            "predicted_per_second": 1e3 * _ratio(steps, self.predicted_ms),
        }
        if self.cache_disk_n is not None:
            ram_n = self.cache_n - self.cache_disk_n
            timings["mlxserver"] = {"cache_ram_n": ram_n, "cache_disk_n": self.cache_disk_n}
        return timings


@dataclass(frozen=True, slots=True)
class ProbEntry:
    """A token with its log-probability (or probability), and the likeliest candidates of its step."""

    token: int
    text: bytes
    value: float
    top: tuple[tuple[int, bytes, float], ...]
    """(token, text, value), best first."""
    is_probability: bool
    """Values are probabilities after sampling, not natural logarithms."""


@dataclass(frozen=True, slots=True)
class Began:
    """A prompt is being evaluated: a stream may send its headers."""

    index: int


@dataclass(frozen=True, slots=True)
class Progress:
    """``processed`` of ``total`` prompt tokens are evaluated, ``cache`` of them reused."""

    index: int
    total: int
    cache: int
    processed: int
    time_ms: int
    timings: Timings | None

    def json(self) -> dict[str, int]:
        """The ``prompt_progress`` object."""
        return {
            "total": self.total,
            "cache": self.cache,
            "processed": self.processed,
            "time_ms": self.time_ms,
        }


@dataclass(frozen=True, slots=True)
class Delta:
    """One sampled token that leaves the text complete in UTF-8; its ``text`` may still be empty."""

    index: int
    text: str
    token: int
    n_decoded: int
    n_prompt: int
    n_cached: int
    probs: ProbEntry | None
    timings: Timings | None
    """Set for ``timings_per_token``, and for the token that completed a stop string."""


@dataclass(frozen=True, slots=True)
class Result:
    """A completion that ended. ``content`` is whole even where a stream sent it before."""

    index: int
    content: str
    tokens: tuple[int, ...]
    """Only for ``return_tokens``."""
    id_slot: int
    n_decoded: int
    n_prompt: int
    n_cached: int
    read_prompt: Callable[[], str]
    """The prompt as text, special tokens shown; made only when asked for."""
    has_new_line: bool
    truncated: bool
    stop_type: StopType
    stopping_word: str
    tokens_cached: int
    timings: Timings
    probs: tuple[ProbEntry, ...]
    request: CompletionRequest
    """As this completion had it: further completions of one prompt have their own seeds."""

    @property
    def is_complete(self) -> bool:
        """The model or a stop string ended it, not a limit."""
        return self.stop_type in ("word", "eos")

    def usage(self) -> dict[str, Any]:
        """OpenAI's ``usage`` object."""
        return {
            "completion_tokens": self.n_decoded,
            "prompt_tokens": self.n_prompt,
            "total_tokens": self.n_decoded + self.n_prompt,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        }


Update = Began | Progress | Delta | Result


class Dialect(Protocol):
    """Turns updates into the JSON of one API. A request has its own, so it may keep state per index."""

    @property
    def done(self) -> str | None:
        """The data of a stream's last event, if the API has one."""
        ...

    def events(self, update: Update) -> list[Any]:
        """The stream events for ``update``, in order, often none or one: JSON values or ``NamedEvent``s."""
        ...

    def error(self, error: ApiError) -> Any:
        """The last event of a stream that fails."""
        ...

    def answer(self, results: list[Result]) -> Any:
        """The JSON of a plain response; ``results`` are in index order."""
        ...


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor > 0 else 0.0
