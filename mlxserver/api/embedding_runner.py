"""Prompts → their vectors: one task for each, all of a request at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request

from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.disconnect import unless_disconnected
from mlxserver.api.errors import error_of, invalid_request
from mlxserver.api.generation_settings import generation_settings, short_settings
from mlxserver.api.prompts import check_tokens
from mlxserver.api.queue_room import check_room
from mlxserver.api.state import ServerState
from mlxserver.engine.task import Failed, Finished, Task, Vectors
from mlxserver.kv.identity import Adapters, CacheIdentity

if TYPE_CHECKING:
    from mlxserver.engine.client import Run

Tokens = tuple[int, ...]
Vector = list[float]

EMPTY = "Input content cannot be empty"
NO_NORM = -1


def pooling_of(state: ServerState) -> str:
    """The server's way to make one vector of a prompt: the option's, else the model's."""
    pooling: str = state.options.pooling or state.model.info.pooling or "none"
    return pooling


async def evaluate(
    request: Request, state: ServerState, prompts: Sequence[Tokens], normalize: int = NO_NORM
) -> list[tuple[Vector, ...]] | None:
    """The vectors of each prompt; None when the client has gone. Raises ``ApiError`` when one fails."""
    for prompt in prompts:
        if not prompt:
            raise invalid_request(EMPTY)
    try:
        for prompt in prompts:
            check_tokens(prompt, state.model.tokenizer)
    except ValueError as error:
        raise invalid_request(str(error)) from None
    adapters = _adapters(state)
    check_room(len(prompts), state)
    runs = [state.engine.submit(_task(prompt, normalize, state, adapters)) for prompt in prompts]
    return await unless_disconnected(request, _all_vectors(runs))


def _adapters(state: ServerState) -> Adapters:
    """Those of the server: as in llama-server, a request has none of its own here. Raises ``ApiError``."""
    try:
        return state.adapters.throughout()
    except ValueError as error:
        raise invalid_request(str(error)) from None


def _task(prompt: Tokens, normalize: int, state: ServerState, adapters: Adapters) -> Task:
    settings = generation_settings if state.shows_slot_texts else short_settings
    return Task(
        id=state.engine.new_task_id(),
        tokens=prompt,
        identity=CacheIdentity(adapters=adapters),
        is_embedding=True,
        embd_normalize=normalize,
        settings=settings(CompletionRequest()),
    )


async def _all_vectors(runs: Sequence[Run]) -> list[tuple[Vector, ...]]:
    """The first failure ends the others."""
    waiting = [asyncio.ensure_future(_vectors(run)) for run in runs]
    try:
        return await asyncio.gather(*waiting)
    finally:
        for task, run in zip(waiting, runs, strict=True):
            if not task.done() or task.cancelled() or task.exception():
                run.cancel()
                task.cancel()


async def _vectors(run: Run) -> tuple[Vector, ...]:
    vectors: tuple[Vector, ...] = ()
    while True:
        for event in await run.events():
            match event:
                case Vectors():
                    vectors = event.vectors
                case Failed():
                    raise error_of(event)
                case Finished():
                    return vectors
