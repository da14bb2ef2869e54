"""``--max-queue``: a server that has enough to do says so at once."""

from __future__ import annotations

from mlxserver.api.errors import Busy
from mlxserver.api.state import ServerState


def check_room(n_tasks: int, state: ServerState) -> None:
    """Raises ``Busy`` where more than ``--max-queue`` of the server's tasks would wait for a slot."""
    most: int = state.options.max_queue
    if most and state.engine.n_open + n_tasks - state.engine.n_slots > most:
        raise Busy(f"The queue is full (--max-queue {most})")
