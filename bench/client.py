"""Streams of /v1/completions with the time of every event."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Stream:
    """Times are ``time.perf_counter()`` of each event that carried text."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    n_prompt: int = 0
    n_tokens: int = 0
    cached: int = 0

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def run_stream(
    url: str, prompt: str, n_predict: int, on_event: Callable[[Stream], None] | None = None
) -> Stream:
    """One greedy completion; raises where it ended early, because then its figures would not compare."""
    body = {
        "model": "default_model",
        "prompt": prompt,
        "max_tokens": n_predict,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    stream = Stream(sent=time.perf_counter())
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
        response.raise_for_status()
        for event in events(response):
            read_event(stream, event)
            if on_event:
                on_event(stream)
    if stream.n_tokens != n_predict or not stream.times:
        raise RuntimeError(f"a stream gave {stream.n_tokens} tokens of {n_predict}")
    return stream


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def read_event(stream: Stream, event: dict[str, Any]) -> None:
    if any(choice.get("text") for choice in event.get("choices", [])):
        stream.times.append(time.perf_counter())
    if usage := event.get("usage"):
        stream.n_tokens = usage["completion_tokens"]
        stream.n_prompt = usage["prompt_tokens"]
        stream.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def run_streams(url: str, prompts: list[str], n_predict: int) -> list[Stream]:
    streams: list[Stream] = []
    lock = threading.Lock()

    def run(prompt: str) -> None:
        stream = run_stream(url, prompt, n_predict)
        with lock:
            streams.append(stream)

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(streams) != len(prompts):
        raise RuntimeError("a stream failed")
    return streams


def decode_rate(streams: list[Stream]) -> float:
    """Tokens/s of all streams together while every one of them runs.

    A server may send several tokens in an event, so events count as many as they carried on average.
    """
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    tokens = 0.0
    for stream in streams:
        inside = sum(1 for t in stream.times if begin < t <= end)
        tokens += inside * stream.n_tokens / len(stream.times)
    return tokens / (end - begin)


@dataclass(frozen=True)
class Arrival:
    """What a running stream and a long prompt that arrives beside it felt. Seconds."""

    median_gap: float
    """Between tokens before the arrival."""
    largest_gap: float
    """From the arrival to the first token of the arriving request."""
    first_token: float

    @property
    def ratio(self) -> float:
        return self.largest_gap / self.median_gap


def measure_arrival(url: str, prompt: str, n_predict: int, long_prompt: str, after: int = 16) -> Arrival:
    """Sends the long prompt when the running stream has had ``after`` events."""
    arriving: list[Stream] = []

    def arrive() -> None:
        arriving.append(run_stream(url, long_prompt, 2))

    thread = threading.Thread(target=arrive)

    def on_event(stream: Stream) -> None:
        if len(stream.times) == after and thread.ident is None:
            thread.start()

    running = run_stream(url, prompt, n_predict, on_event)
    thread.join()
    (other,) = arriving
    before = [gap for gap, t in zip(running.gaps, running.times[1:], strict=True) if t <= other.sent]
    during = [
        b - a
        for a, b in zip(running.times, running.times[1:], strict=False)
        if b > other.sent and a < other.times[0]
    ]
    return Arrival(statistics.median(before), max(during), other.first_token_seconds)
