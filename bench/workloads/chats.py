"""Chats side by side, each sending its whole history with every turn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.client import Message, Stream, chat, completion, stream
from bench.measures import evaluated, median_first_token, seconds_of_all
from bench.texts import assistant, prose, system, user
from bench.workload import Figures, Play

N_CHATS, N_TURNS = 4, 5
N_SYSTEM, N_QUESTION, N_PREDICT = 200, 60, 32


def chats(play: Play) -> Figures:
    def talk(number: int) -> list[Stream]:
        history: list[Message] = [system(prose(play.size(N_SYSTEM), play.seed(number)))]
        turns = []
        for turn in range(N_TURNS):
            words = prose(play.size(N_QUESTION), play.seed(100 * number + turn + 10))
            history.append(user(f"Write a long story with these words: {words}"))
            turns.append(stream(play.url, chat(history, play.size(N_PREDICT)), exact=False))
            history.append(assistant(turns[-1].text))
        return turns

    stream(play.url, completion("Hello", 2))
    with ThreadPoolExecutor(N_CHATS) as pool:
        talks = list(pool.map(talk, range(N_CHATS)))
    played = [turn for talk in talks for turn in talk]
    return {
        "first token of later turns, median (s)": median_first_token([t for talk in talks for t in talk[1:]]),
        "time of all turns (s)": seconds_of_all(played),
        "prompt tokens evaluated": evaluated(played),
    }
