"""``GET /kv-events``: which blocks of prompts are stored and removed, as Server-Sent Events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mlxserver.api.errors import not_supported
from mlxserver.api.sse import EventStream
from mlxserver.api.sse_frame import NamedEvent, frame
from mlxserver.api.state import ServerState
from mlxserver.kv.block_hash import BLOCK_TOKENS
from mlxserver.kv.block_ledger import BlockChange

PING_SECONDS = 30


async def kv_events(request: Request, state: ServerState) -> Response:
    """What is stored now, then every change, until the client goes away."""
    if not state.options.kv_events:
        raise not_supported("This server does not tell its stored blocks. Start it with `--kv-events`")
    return EventStream(_events(state), PING_SECONDS)


async def _events(state: ServerState) -> AsyncGenerator[bytes]:
    engine = state.engine
    adapters = [{"id": listed.id, "digest": listed.info.digest} for listed in state.adapters]
    start = {"block_size": BLOCK_TOKENS, "root": engine.block_root.hex(), "adapters": adapters}
    yield frame(NamedEvent("start", start))
    async for changes in engine.blocks.listen():
        yield frame(NamedEvent(changes[0].kind, _described(changes)))
    if not engine.blocks.has_ended:
        yield frame(NamedEvent("behind", {}))


def _described(changes: Sequence[BlockChange]) -> dict[str, Any]:
    """Changes of one kind, tier and adapter set."""
    first = changes[0]
    blocks = [
        {"hash": c.block.hash.hex(), "parent": c.block.parent.hex(), "n_tokens": c.block.n_tokens}
        for c in changes
    ]
    return {"tier": first.tier, "adapter_id": first.block.adapter_id, "blocks": blocks}
