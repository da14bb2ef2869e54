"""Work for a client that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

T = TypeVar("T")


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T | None:
    """The result of ``work``, which is cancelled when the client goes away; None then."""
    working = asyncio.ensure_future(work)
    await until_one_ends(working, asyncio.create_task(disconnected(request.receive)))
    return None if working.cancelled() else working.result()


async def until_one_ends(*tasks: asyncio.Future[Any]) -> None:
    """Waits for one of ``tasks`` and cancels the others; all have ended then, however this is left."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


async def disconnected(receive: Receive) -> None:
    """Waits until the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
