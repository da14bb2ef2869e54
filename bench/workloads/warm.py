"""The first token of a prompt whose prefix is known, beside that of the same prompt when it was new."""

from __future__ import annotations

from bench.client import Stream, chat, completion, stream
from bench.measures import median_first_token
from bench.texts import WORDS, prose, system, user
from bench.workload import Figures, Play

N_PREFIX, N_WARM = 1500, 5


def warm(play: Play) -> Figures:
    prefix = prose(play.size(N_PREFIX), play.seed(0))

    def ask(number: int) -> Stream:
        question = user(f"What do you know of the {WORDS[number]}?")
        return stream(play.url, chat([system(prefix), question], 2))

    stream(play.url, completion("Hello", 2))
    cold = ask(0).first_token_seconds
    warm = median_first_token([ask(number) for number in range(1, 1 + N_WARM)])
    return {"first token, cold (s)": cold, "first token, warm (s)": warm, "warm / cold": warm / cold}
