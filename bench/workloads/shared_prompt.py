"""Chats that begin at once with the same long system prompt, which is new to the server."""

from __future__ import annotations

from bench.client import chat, completion, stream, together
from bench.measures import evaluated, seconds_of_all
from bench.texts import ENDLESS, WORDS, prose, system, user
from bench.workload import Figures, Play

N_CHATS, N_SYSTEM, N_PREDICT = 8, 1000, 32


def shared_prompt(play: Play) -> Figures:
    instructions = system(prose(play.size(N_SYSTEM), play.seed(0)))
    asked = [user(f"Write a long story about a {word}.") for word in WORDS[:N_CHATS]]
    stream(play.url, completion("Hello", 2))
    n_predict = play.size(N_PREDICT)
    requests = [chat([instructions, question], n_predict, **ENDLESS) for question in asked]
    played = together(play.url, requests)
    return {
        "time to all first tokens (s)": max(s.times[0] for s in played) - min(s.sent for s in played),
        "time to the last token (s)": seconds_of_all(played),
        "prompt tokens evaluated": evaluated(played),
    }
