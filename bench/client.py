"""Streamed requests with the time of every event.

The client shares the machine with the server, so it only takes bytes and their times down while a stream runs
and reads them when it has ended.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 1800
ACCEPT_SECONDS = 0.01
Piece = tuple[float, bytes]
"""``time.perf_counter()`` of what came in at once, and that."""
Message = dict[str, str]


@dataclass(frozen=True)
class Request:
    path: str
    body: dict[str, Any]


def completion(prompt: str, n_predict: int, **fields: Any) -> Request:
    """Greedy, unless ``fields`` say otherwise."""
    return Request("/v1/completions", {"prompt": prompt, **_common(n_predict), **fields})


def chat(messages: Sequence[Message], n_predict: int, **fields: Any) -> Request:
    return Request("/v1/chat/completions", {"messages": list(messages), **_common(n_predict), **fields})


def _common(n_predict: int) -> dict[str, Any]:
    return {
        "model": "default_model",
        "max_tokens": n_predict,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@dataclass(frozen=True)
class Stream:
    """``times``: of the events that carried text. Seconds of ``time.perf_counter()``."""

    sent: float
    times: tuple[float, ...] = ()
    text: str = ""
    n_prompt: int = 0
    n_cached: int = 0
    n_tokens: int = 0
    ended: float = 0.0

    @property
    def first_token_seconds(self) -> float:
        return self.times[0] - self.sent

    @property
    def n_evaluated(self) -> int:
        """Tokens of the prompt that were not taken over from a cache."""
        return self.n_prompt - self.n_cached


def connected(url: str) -> HTTPConnection:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    connection.connect()
    return connection


def receive(connection: HTTPConnection, request: Request) -> Iterator[Piece]:
    """What comes in, as it comes in. Whoever stops asking for more ends the connection."""
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", request.path, json.dumps(request.body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{request.path}: {response.status} {response.read().decode()}")
        while data := response.read1(65536):
            yield time.perf_counter(), data
    finally:
        connection.close()


def events(pieces: Iterable[Piece]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Every event's data and the time when its line was whole. Raises for one that tells an error."""
    rest = b""
    for at, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise RuntimeError(f"the stream told of an error: {event['error']}")
                yield at, event


def read(sent: float, pieces: Sequence[Piece]) -> Stream:
    times, text, stream = [], "", Stream(sent)
    for at, event in events(pieces):
        if carried := "".join(map(text_of, event.get("choices", []))):
            times.append(at)
            text += carried
        if usage := event.get("usage"):
            stream = replace(
                stream,
                n_prompt=usage["prompt_tokens"],
                n_cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
                n_tokens=usage["completion_tokens"],
            )
    return replace(stream, times=tuple(times), text=text, ended=pieces[-1][0] if pieces else sent)


def text_of(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def stream(url: str, request: Request, exact: bool = True) -> Stream:
    """The whole of it. ``exact``: raises where it ended early, because then its figures would not compare."""
    return stream_over(connected(url), request, exact)


def stream_over(connection: HTTPConnection, request: Request, exact: bool) -> Stream:
    sent = time.perf_counter()
    result = read(sent, list(receive(connection, request)))
    wanted = request.body["max_tokens"]
    if not result.times or (exact and result.n_tokens != wanted):
        raise RuntimeError(f"a stream gave {result.n_tokens} tokens of {wanted}: {result.text!r}")
    return result


def together(url: str, requests: Sequence[Request], exact: bool = True) -> list[Stream]:
    """All at once, each over a connection of its own, in the order of ``requests``.

    The connections are made one by one before: mlx_lm.server resets some of those that come at once.
    """
    connections = []
    for _ in requests:
        connections.append(connected(url))
        time.sleep(ACCEPT_SECONDS)
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda c, request: stream_over(c, request, exact), connections, requests))
