"""Streams are read from bytes as they came in, however they were cut."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bench.client import Piece, completion, connected, events, read, receive, stream, together

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def line(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def text(content: str) -> dict[str, Any]:
    return {"choices": [{"text": content}]}


def test_an_event_has_the_time_at_which_its_line_was_whole() -> None:
    whole = line(text("one")) + line(text("two"))
    pieces: list[Piece] = [(1.0, whole[:9]), (2.0, whole[9:50]), (3.0, whole[50:])]
    assert [at for at, _ in events(pieces)] == [2.0, 3.0]
    assert read(0.0, pieces).text == "onetwo"


def test_comments_and_the_end_are_no_events() -> None:
    assert list(events([(1.0, b": keepalive 3/5\n\ndata: [DONE]\n\nevent: x\n")])) == []


def test_only_events_with_text_count_as_tokens_times() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": None}}]}
    said = {"choices": [{"delta": {"content": "yes"}}]}
    counted = {"choices": [], "usage": USAGE}
    result = read(
        0.5, [(1.0, line(role)), (2.0, line(said)), (3.0, line(counted)), (4.0, b"data: [DONE]\n\n")]
    )
    assert (result.times, result.first_token_seconds, result.ended) == ((2.0,), 1.5, 4.0)
    assert (result.n_prompt, result.n_cached, result.n_evaluated, result.n_tokens) == (10, 4, 6, 2)


def test_usage_without_a_count_of_cached_tokens_has_none() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": None}
    assert read(0.0, [(1.0, line({"usage": usage}))]).n_evaluated == 10


def test_an_error_within_a_stream_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no room"):
        read(0.0, [(1.0, line(text("one"))), (2.0, line({"error": {"message": "no room"}}))])


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == "bad":
            self.send_error(400, "refused")
            return
        self.send_response(200)
        self.end_headers()
        for i in range(2):
            self.wfile.write(line(text(body["prompt"] + str(i))))
            self.wfile.flush()
        self.wfile.write(line({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_streams_over_http() -> None:
    with serving() as url:
        played = together(url, [completion("a", 2), completion("b", 2)])
        assert [s.text for s in played] == ["a0a1", "b0b1"]
        assert all(s.sent < s.times[0] <= s.ended for s in played)


def test_a_stream_that_ends_early_is_refused_unless_it_may() -> None:
    with serving() as url:
        with pytest.raises(RuntimeError, match="2 tokens of 3"):
            stream(url, completion("a", 3))
        assert stream(url, completion("a", 3), exact=False).n_tokens == 2


def test_an_answer_that_is_no_200_is_raised() -> None:
    with serving() as url, pytest.raises(RuntimeError, match="(?s)400.*refused"):
        list(receive(connected(url), completion("bad", 2)))
