"""Short streams alone, beside a long context that lies idle, and beside one that runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench.client import completion, read, receive, stream, together
from bench.measures import decode_rate
from bench.texts import ENDLESS, lasting, prose
from bench.workload import Figures, Play
from bench.workloads.streams import JOINING

N_SHORT, N_LONG, N_PREDICT, MANY = 8, 4000, 48, 400


def long_context(play: Play) -> Figures:
    def rate(nonce: int, n_predict: int) -> float:
        requests = [completion(prompt, n_predict) for prompt in lasting(N_SHORT, play.seed(nonce))]
        return decode_rate(together(play.url, requests))

    n_predict = play.size(N_PREDICT) + JOINING * N_SHORT
    rate(1, 4)
    alone = rate(2, n_predict)
    context = prose(play.size(N_LONG), play.seed(3))
    context += stream(play.url, completion(context, 2)).text
    idle = rate(4, n_predict)
    started, over = threading.Event(), threading.Event()

    def go_on() -> float:
        """Seconds to the first token of the long context's next turn."""
        sent, pieces = time.perf_counter(), []
        try:
            for piece in receive(play.url, completion(context + " and", MANY, **ENDLESS)):
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
            beside = rate(5, n_predict)
        finally:
            over.set()
        first_token = going_on.result()
    return {
        "tokens/s of 8 short streams, alone": alone,
        "tokens/s of them beside an idle context": idle,
        "tokens/s of them beside a running one": beside,
        "first token of the idle one's next turn (s)": first_token,
    }
