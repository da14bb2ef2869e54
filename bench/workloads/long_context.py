"""Short streams alone, beside a long context that lies idle, and beside one that runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench.client import completion, connected, read, receive, stream
from bench.texts import ENDLESS, prose
from bench.workload import Figures, Play
from bench.workloads.streams import rate

N_SHORT, N_LONG, N_PREDICT, MANY = 8, 4000, 48, 400


def long_context(play: Play) -> Figures:
    n_predict = play.size(N_PREDICT)
    alone = rate(play.url, N_SHORT, n_predict, play.seed(1))
    context = prose(play.size(N_LONG), play.seed(2))
    context += stream(play.url, completion(context, 2)).text
    idle = rate(play.url, N_SHORT, n_predict, play.seed(3))
    started, over = threading.Event(), threading.Event()

    def go_on() -> float:
        """Seconds to the first token of the long context's next turn."""
        sent, pieces = time.perf_counter(), []
        try:
            for piece in receive(connected(play.url), completion(context + " and", MANY, **ENDLESS)):
                pieces.append(piece)
                started.set()
                if over.is_set():
                    break
        finally:
            started.set()
        if not over.is_set():
            raise RuntimeError("the long stream ended before the short ones")
        return read(sent, pieces).first_token_seconds

    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(go_on)
        started.wait()
        try:
            beside = rate(play.url, N_SHORT, n_predict, play.seed(4))
        finally:
            over.set()
        first_token = going_on.result()
    return {
        "tokens/s of 8 short streams, alone": alone,
        "tokens/s of them beside an idle context": idle,
        "tokens/s of them beside a running one": beside,
        "first token of the idle one's next turn (s)": first_token,
    }
