"""Tokens a second of several completions at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx


def total_rate(url: str, bodies: Sequence[dict[str, Any]], n_predict: int, pool: ThreadPoolExecutor) -> float:
    """Over all streams, from the first request to the last answer; each must have ``n_predict`` tokens."""

    def ask(body: dict[str, Any]) -> int:
        wanted = {"n_predict": n_predict, "ignore_eos": True} | body
        answer = httpx.post(f"{url}/completion", json=wanted, timeout=600).raise_for_status().json()
        return int(answer["tokens_predicted"])

    started = time.perf_counter()
    counts = list(pool.map(ask, bodies))
    if counts != [n_predict] * len(bodies):
        raise RuntimeError(f"answers of {counts} tokens")
    return sum(counts) / (time.perf_counter() - started)
