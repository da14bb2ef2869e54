"""Work on large requests beside the event loop, which would hold up every other stream for seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

T = TypeVar("T")

LARGE = 32 * 1024
"""Bytes of a body. What a smaller one asks for takes some milliseconds."""
THREAD = "large-requests"

_one_at_a_time = ThreadPoolExecutor(1, THREAD)
"""Several would take the interpreter from the event loop for longer."""


async def aside(request: Request, work: Callable[[], T]) -> T:
    """What ``work`` gives or raises. It only reads what others may change."""
    return await aside_if(len(await request.body()) > LARGE, work)


async def aside_if(is_large: bool, work: Callable[[], T]) -> T:
    if not is_large:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_one_at_a_time, work)
