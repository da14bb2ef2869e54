"""More short requests at once than there are slots."""

from __future__ import annotations

from bench.client import completion, stream, together
from bench.measures import percentile, seconds_of_all
from bench.texts import LASTING, repeated
from bench.workload import Figures, Play

N_REQUESTS, N_WORDS, N_PREDICT = 64, 24, 16


def burst(play: Play) -> Figures:
    stream(play.url, completion("Hello", 2))
    prompts = [
        repeated(LASTING[i % len(LASTING)], N_WORDS, play.seed(i)) for i in range(play.size(N_REQUESTS))
    ]
    played = together(play.url, [completion(prompt, N_PREDICT) for prompt in prompts])
    latencies = [s.ended - s.sent for s in played]
    return {
        "requests/s": len(played) / seconds_of_all(played),
        "latency, median (s)": percentile(latencies, 50),
        "latency, 95 of 100 (s)": percentile(latencies, 95),
    }
