"""A server whose engine makes tokens out of nothing, to measure what lies between the engine and the socket.

``app`` is the real application with its gates, uvicorn settings and the tokenizer of a GGUF file. The others
send fixed bytes and are its yardsticks: ``sse-starlette`` as an ``EventSourceResponse``, ``uvicorn`` as bare
ASGI messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from mlxserver.api.adapter_list import AdapterList
from mlxserver.api.app import make_app
from mlxserver.api.state import Ready, ServerState
from mlxserver.engine.client import EngineClient
from mlxserver.engine.config import EngineConfig
from mlxserver.engine.mailbox import Cancel, Message, StopAt, Submit
from mlxserver.engine.task import Event, Finished, Started, Task, Token
from mlxserver.models.gguf.model_file import open_model
from mlxserver.models.model import Model, ModelInfo
from mlxserver.models.tokenizer.gguf import from_gguf
from mlxserver.options.options import parse_command_line
from mlxserver.serving import Server, bind, template_of, uvicorn_config
from mlxserver.telemetry import log

FIXED_EVENT = (
    b'data: {"index":0,"content":" word","tokens":[1234],"stop":false,"id_slot":-1,'
    b'"tokens_predicted":100,"tokens_evaluated":8}\n\n'
)


class StubEngine:
    """Gives every running task one token a step.

    ``seconds``: 0 goes on as soon as the loop has taken in the step before and given every stream its turn,
    so that each token has a wake-up of its own; negative makes all steps at once. ``silent``: tasks begin and
    get nothing more. Every step has a token of its own, and ``emitted`` tells when each was made.
    """

    def __init__(self, client: EngineClient, words: list[int], seconds: float, silent: bool) -> None:
        self._client = client
        self._words = words
        self._seconds = seconds
        self._silent = silent
        self._mailbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._taken = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._left: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self.emitted: dict[int, float] = {}
        threading.Thread(target=self._main, daemon=True).start()

    def post(self, message: Message) -> None:
        self._mailbox.put(message)

    def _main(self) -> None:
        number, due = 0, time.perf_counter()
        while True:
            events = self._read_mail()
            now = time.perf_counter()
            if not self._silent:
                token = self._words[number % len(self._words)]
                self.emitted[token] = now
                number += 1
                events += self._step(token, now)
            self._client.receive(events)
            if self._seconds == 0:
                self._wait_for_loop()
            elif self._seconds > 0:
                due = max(due + self._seconds, now)
                time.sleep(max(0.0, due - time.perf_counter()))

    def _wait_for_loop(self) -> None:
        self._taken.clear()
        # the second hop comes behind every stream that the step has woken
        self._loop.call_soon_threadsafe(lambda: self._loop.call_soon(self._taken.set))
        self._taken.wait()

    def _read_mail(self) -> list[Event]:
        events: list[Event] = []
        while self._silent or not self._left or not self._mailbox.empty():
            match self._mailbox.get():
                case Submit(task):
                    events += self._begin(task)
                    if self._silent:
                        return events
                case Cancel(task_id):
                    self._left.pop(task_id, None)
                case StopAt(task_id, n):
                    self._left.pop(task_id, None)
                    events.append(Finished(task_id, "stop", False, n, time.perf_counter()))
        return events

    def _begin(self, task: Task) -> list[Event]:
        ids = [task.id, *(task_id for task_id, _ in task.children)]
        n_prompt, n_predict = len(task.tokens), max(1, task.n_predict)
        for task_id in ids:
            self._left[task_id], self._lengths[task_id] = n_predict, n_prompt + n_predict - 1
        return [Started(task_id, 0, n_prompt, 0, time.perf_counter()) for task_id in ids]

    def _step(self, token: int, now: float) -> list[Event]:
        events: list[Event] = [Token(task_id, token, now) for task_id in self._left]
        for task_id in list(self._left):
            self._left[task_id] -= 1
            if not self._left[task_id]:
                del self._left[task_id]
                events.append(Finished(task_id, "limit", False, self._lengths.pop(task_id), now))
        return events


def real_app(options: Any, seconds: float, silent: bool) -> tuple[ServerState, StubEngine]:
    """The state of a loaded server around a stub."""
    tokenizer, info = _tokenizer(Path(options.model))
    model = Model(module=None, tokenizer=tokenizer, info=info)
    client = EngineClient(asyncio.get_running_loop())
    words = [
        token
        for token in range(1000, tokenizer.n_vocab)
        if tokenizer.piece(token).isascii() and not tokenizer.is_special(token)
    ]
    stub = StubEngine(client, words, seconds, silent)
    client.attach(stub, EngineConfig.from_options(options, info.n_ctx_train))  # type: ignore[arg-type]
    ready = Ready(model, client, template_of(model, options), AdapterList())
    return ServerState(options, ready), stub


def _tokenizer(path: Path) -> tuple[Any, ModelInfo]:
    metadata = open_model(path).metadata
    tokenizer = from_gguf(metadata)
    info = ModelInfo(
        path=str(path),
        architecture="stub",
        n_vocab=tokenizer.n_vocab,
        n_ctx_train=8192,
        n_embd=8,
        n_params=1,
        size=1,
        ftype="all F32",
        chat_template=str(metadata.get("tokenizer.chat_template", "")),
    )
    return tokenizer, info


async def bare_sse_starlette(scope: Scope, receive: Receive, send: Send) -> None:
    """An event for each turn of the loop."""
    from sse_starlette import EventSourceResponse

    async def events() -> AsyncGenerator[bytes]:
        for _ in range(await _wanted(receive)):
            await asyncio.sleep(0)
            yield FIXED_EVENT

    await EventSourceResponse(events(), sep="\n", ping=30)(scope, receive, send)


async def bare_uvicorn(scope: Scope, receive: Receive, send: Send) -> None:
    """An event for each turn of the loop."""
    n = await _wanted(receive)
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(n):
        await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": FIXED_EVENT, "more_body": True})
    await send({"type": "http.response.body"})


async def _wanted(receive: Receive) -> int:
    message = await receive()
    return int(json.loads(message["body"])["n_predict"])


async def run(args: argparse.Namespace) -> None:
    options = parse_command_line(["-m", str(args.model), "-np", "64", "-lv", "1"], {})
    log.configure(options)
    stub = None
    state = ServerState(options)
    app: Any = {"sse-starlette": bare_sse_starlette, "uvicorn": bare_uvicorn}.get(args.kind)
    if app is None:
        state, stub = real_app(options, args.seconds, args.silent)
        app = make_app(state)
    server = Server(uvicorn_config(app, options), state)
    listener = bind("127.0.0.1", args.port, False)
    try:
        await server.serve(sockets=[listener])
    finally:
        if stub is not None and args.times:
            args.times.write_text(json.dumps(stub.emitted))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("app", "sse-starlette", "uvicorn"))
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file; only its tokenizer is used")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.0, help="of a step; see StubEngine")
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--times", type=Path, help="where to write when each token was made")
    args = parser.parse_args()
    loop_module = os.environ.get("STUB_LOOP")
    if loop_module:
        import importlib

        importlib.import_module(loop_module).install()
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
