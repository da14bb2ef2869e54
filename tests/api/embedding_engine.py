"""An engine that makes vectors of a prompt's token ids, and a run that tells them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from mlxserver.engine.task import Event, Failed, Finished, Started, Task, Vectors

Answer = tuple[list[float], ...] | Failed


class EmbeddingRun:
    def __init__(self, task: Task, answer: Answer) -> None:
        self.task = task
        self.cancelled = False
        self._answer = answer

    async def events(self) -> list[Event]:
        await asyncio.sleep(0)
        if isinstance(self._answer, Failed):
            return [self._answer]
        if not self._answer:
            await asyncio.Event().wait()
        started = Started(self.task.id, 0, len(self.task.tokens), 0, 0.0)
        vectors = Vectors(self.task.id, self._answer)
        return [started, vectors, Finished(self.task.id, "none", False, 0, 0.0)]

    def cancel(self) -> None:
        self.cancelled = True


class EmbeddingEngine:
    """``answer`` gives the vectors of a task; none at all, and it never ends."""

    n_ctx, n_slots = 512, 4

    def __init__(self, answer: Callable[[Task], Answer]) -> None:
        self.runs: list[EmbeddingRun] = []
        self._answer = answer
        self._ids = itertools.count()

    def new_task_id(self) -> int:
        return next(self._ids)

    def submit(self, task: Task) -> EmbeddingRun:
        run = EmbeddingRun(task, self._answer(task))
        self.runs.append(run)
        return run
