"""From the start of the process to the first token: mlx_lm.server is well before its model is loaded."""

from __future__ import annotations

from bench.client import completion, stream
from bench.workload import Figures, Play


def start(play: Play) -> Figures:
    first = stream(play.url, completion("Hello", 1))
    return {"start to first token (s)": first.times[0] - play.server.spawned}
