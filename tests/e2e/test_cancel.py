"""A client that goes away frees its slot at once, whatever its request was doing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest

from tests.e2e.server import Server, wait_until

FREE_WITHIN = 1.0
"""Seconds on a machine that does nothing else. The requests themselves would run for far longer."""

SHORT = "Once upon a time"
LONG = "The quick brown fox jumps over the lazy dog. " * 170
"""About 1700 tokens."""

PHASES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@contextmanager
def request(server: Server, prompt: str, stream: bool) -> Iterator[socket.socket]:
    """A completion that goes on until the context is full or its socket is closed."""
    address = urlsplit(server.url)
    body = {"prompt": prompt, "n_predict": -1, "ignore_eos": True, "stream": stream, "cache_prompt": False}
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        yield connection


def patience() -> float:
    return FREE_WITHIN * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def n_decoded(server: Server) -> list[int]:
    return [slot["next_token"][0]["n_decoded"] for slot in server.busy()]


@pytest.fixture(autouse=True)
def all_slots_free(server: Server) -> Iterator[None]:
    wait_until("all slots free before", lambda: not server.busy(), 60)
    yield
    wait_until("all slots free after", lambda: not server.busy(), 60)


@PHASES
def test_while_it_decodes(server: Server, stream: bool, figure: list[str]) -> None:
    with request(server, SHORT, stream):
        wait_until("three tokens", lambda: max(n_decoded(server), default=0) >= 3, 60)
    seconds = wait_until("the slot is free", lambda: not server.busy(), patience())
    figure.append(f"slot free after a disconnect while decoding: {seconds:.2f} s")


@PHASES
def test_while_the_prompt_is_read(server: Server, stream: bool, figure: list[str]) -> None:
    before = server.metric("prompt_tokens_total")
    with request(server, LONG, stream):
        wait_until("the prompt begins", lambda: n_decoded(server) == [0], 60)
    seconds = wait_until("the slot is free", lambda: not server.busy(), patience())
    assert server.metric("prompt_tokens_total") - before < 1700, "the prompt was read to its end"
    figure.append(f"slot free after a disconnect while reading the prompt: {seconds:.2f} s")


@PHASES
def test_while_it_waits_for_a_slot(server: Server, stream: bool) -> None:
    with ExitStack() as others:
        for _ in range(4):
            others.enter_context(request(server, SHORT, stream=True))
        wait_until("every slot is busy", lambda: len(server.busy()) == 4, 60)
        with request(server, SHORT, stream):
            wait_until("the fifth request waits", lambda: server.metric("requests_deferred") == 1, 60)
        wait_until("nobody waits", lambda: server.metric("requests_deferred") == 0, patience())
        assert len(server.busy()) == 4
