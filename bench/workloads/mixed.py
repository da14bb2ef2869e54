"""Rows of one batch that are sampled in different ways, beside the same rows all greedy.

mlx_lm.server has no grammars: it reads over the JSON schema and samples that row freely.
"""

from __future__ import annotations

from typing import Any

from bench.client import Request, chat, together
from bench.measures import decode_rate
from bench.texts import ENDLESS, WORDS, user
from bench.workload import Figures, Play

N_PREDICT = 64
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 200}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
CHAIN = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5}
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    CHAIN,
    CHAIN,
    {"response_format": SCHEMA},
    CHAIN | {"logprobs": True, "top_logprobs": 5},
    CHAIN | PENALTIES,
    PENALTIES,
)


def mixed(play: Play) -> Figures:
    def requests(n_predict: int, samplings: tuple[dict[str, Any], ...], first: int) -> list[Request]:
        return [
            chat([user(f"{play.seed(first + i)}. Tell of a {WORDS[i]}.")], n_predict, **ENDLESS, **fields)
            for i, fields in enumerate(samplings)
        ]

    n_predict = play.size(N_PREDICT)
    together(play.url, requests(4, SAMPLINGS, 0))
    greedy = decode_rate(together(play.url, requests(n_predict, ({},) * len(SAMPLINGS), 10)))
    sampled = decode_rate(together(play.url, requests(n_predict, SAMPLINGS, 20)))
    return {
        "tokens/s, all greedy": greedy,
        "tokens/s, mixed": sampled,
        "time of a mixed / greedy token": greedy / sampled,
    }
