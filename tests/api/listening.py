"""The application on a real socket, for what only a socket shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from mlxserver import serving
from mlxserver.api.state import ServerState


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@dataclass(frozen=True)
class Listening:
    server: uvicorn.Server
    host: str
    port: int
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=limit)
        self.writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def ask(self, raw: bytes) -> Answer:
        """What comes back until the server closes."""
        reader, writer = await self.connect()
        writer.write(raw)
        return parsed(await reader.read())

    @property
    def n_connections(self) -> int:
        return len(self.server.server_state.connections)


def parsed(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answer(int(first.split(" ")[1]), headers, body)


def post(path: str, body: Any, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


@asynccontextmanager
async def listening(state: ServerState) -> AsyncGenerator[Listening]:
    server = uvicorn.Server(serving.uvicorn_config(serving.make_app(state), state.options))
    listener = serving.bind("127.0.0.1", 0, reuse_port=False)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield Listening(server, *listener.getsockname())
    finally:
        server.should_exit = True
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await running
