"""An agent's loop: every step adds a tool's result, and the oldest result goes, with what was said to it.

What goes stands in the middle of the prompt, so that its exact prefix ends there.
"""

from __future__ import annotations

from bench.client import Message, Stream, chat, completion, stream
from bench.measures import evaluated, median_first_token, seconds_of_all
from bench.texts import assistant, prose, system, user
from bench.workload import Figures, Play

N_STEPS, N_KEPT = 8, 3
N_SYSTEM, N_RESULT, N_PREDICT = 400, 150, 24


def agent(play: Play) -> Figures:
    instructions = system(prose(play.size(N_SYSTEM), play.seed(0)))
    results: list[Message] = []
    answers: list[Message] = []
    steps: list[Stream] = []
    stream(play.url, completion("Hello", 2))
    for step in range(N_STEPS):
        results.append(user(f"Result {step}: {prose(play.size(N_RESULT), play.seed(10 + step))}"))
        messages = [instructions, *conversation(results, answers)]
        steps.append(stream(play.url, chat(messages, play.size(N_PREDICT)), exact=False))
        answers.append(assistant(steps[-1].text))
    return {
        "first token of a step, median (s)": median_first_token(steps[1:]),
        "time of all steps (s)": seconds_of_all(steps),
        "prompt tokens evaluated": evaluated(steps),
    }


def conversation(results: list[Message], answers: list[Message]) -> list[Message]:
    """The last ``N_KEPT`` results, each followed by its answer but for the newest."""
    *older, newest = results
    pairs = list(zip(older, answers, strict=True))[-(N_KEPT - 1) :]
    return [message for pair in pairs for message in pair] + [newest]
