"""A stream runs; a long prompt arrives: what the stream feels, and how long the arriving one waits."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench.client import Piece, completion, connected, read, receive, stream
from bench.measures import gaps_before, gaps_during
from bench.texts import ENDLESS, LASTING, N_LASTING, prose, repeated
from bench.workload import Figures, Play

N_ALONE = 24
"""Events of the running stream before the long prompt is sent."""
MANY = 2000


def arrival(n_prompt: int) -> Callable[[Play], Figures]:
    def play_arrival(play: Play) -> Figures:
        stream(play.url, completion("Hello", 2))
        long_prompt = completion(prose(play.size(n_prompt), play.seed(1)), 2)
        pieces: list[Piece] = []
        sent = time.perf_counter()
        alone, over = threading.Event(), threading.Event()

        def run_beside() -> None:
            prompt = repeated(LASTING[0], N_LASTING, play.seed(2))
            try:
                for piece in receive(connected(play.url), completion(prompt, MANY, **ENDLESS)):
                    pieces.append(piece)
                    if len(pieces) == N_ALONE:
                        alone.set()
                    if over.is_set():
                        return
            finally:
                alone.set()

        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(run_beside)
            alone.wait()
            try:
                arriving = stream(play.url, long_prompt)
            finally:
                over.set()
            beside.result()
        running = read(sent, pieces).times
        during = gaps_during(running, arriving.sent, arriving.times[0])
        if not during:
            raise RuntimeError("the running stream ended before the arriving one began")
        usual = statistics.median(gaps_before(running, arriving.sent))
        return {
            "median gap before (ms)": 1e3 * usual,
            "largest gap meanwhile (ms)": 1e3 * max(during),
            "largest / median gap": max(during) / usual,
            "first token of the arriving one (s)": arriving.first_token_seconds,
        }

    return play_arrival
