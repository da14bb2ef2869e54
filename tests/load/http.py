"""Requests over HTTP/1.1, each on a connection of its own that can be cut at any moment."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 300


class Refused(Exception):
    """An answer that is not 200; ``status`` and the body as text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:500]}")
        self.status, self.text = status, text


@contextmanager
def connection(url: str) -> Iterator[HTTPConnection]:
    made = HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        made.connect()
        yield made
    finally:
        made.close()


def send(made: HTTPConnection, path: str, body: Any) -> None:
    if body is None:
        made.request("GET", path)
    else:
        made.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})


def ask(url: str, path: str, body: Any = None) -> Any:
    """The answer's JSON, or its text where it is none. GET without a body. Raises Refused."""
    with connection(url) as made:
        send(made, path, body)
        response = made.getresponse()
        text = _text(response)
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return json.loads(text) if is_json else text


def events(url: str, path: str, body: Any) -> list[dict[str, Any]]:
    """What a stream told, as JSON. Raises Refused, also for an error that it told."""
    with connection(url) as made:
        send(made, path, body)
        lines = _text(made.getresponse()).splitlines()
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for event in found:
        if "error" in event:
            raise Refused(event["error"].get("code", 0), json.dumps(event))
    return found


def abandon(url: str, path: str, body: Any, seconds: float) -> bool:
    """Sends a request, reads for so long and goes away. False if the answer was complete before."""
    with connection(url) as made:
        send(made, path, body)
        sock = made.sock
        sock.settimeout(seconds)
        try:
            response = made.getresponse()
            if response.status != 200:
                raise Refused(response.status, response.read().decode(errors="replace"))
            while response.read1(65536):
                pass
            return False
        except TimeoutError:
            sock.shutdown(socket.SHUT_RDWR)
            return True


def _text(response: HTTPResponse) -> str:
    text = response.read().decode()
    if response.status != 200:
        raise Refused(response.status, text)
    return text
