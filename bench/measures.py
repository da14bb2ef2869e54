"""Figures of streams."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.client import Stream


def decode_rate(streams: Sequence[Stream]) -> float:
    """Tokens/s of all streams together while every one of them runs.

    A server may send several tokens in an event, so events count as many as they carried on average.
    """
    begin = max(stream.times[0] for stream in streams)
    end = min(stream.times[-1] for stream in streams)
    if end <= begin:
        raise RuntimeError("the streams did not run at the same time")
    tokens = 0.0
    for stream in streams:
        inside = sum(1 for t in stream.times if begin < t <= end)
        tokens += inside * stream.n_tokens / len(stream.times)
    return tokens / (end - begin)


def gaps_before(times: Sequence[float], moment: float) -> list[float]:
    return [b - a for a, b in zip(times, times[1:], strict=False) if b <= moment]


def gaps_during(times: Sequence[float], begin: float, end: float) -> list[float]:
    """Those that have a part between ``begin`` and ``end``."""
    return [b - a for a, b in zip(times, times[1:], strict=False) if b > begin and a < end]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of 100 of them do not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank), 1) - 1]


def median_first_token(streams: Sequence[Stream]) -> float:
    return statistics.median(stream.first_token_seconds for stream in streams)


def evaluated(streams: Sequence[Stream]) -> float:
    return float(sum(stream.n_evaluated for stream in streams))


def seconds_of_all(streams: Sequence[Stream]) -> float:
    """From the first request to the end of the last answer."""
    return max(stream.ended for stream in streams) - min(stream.sent for stream in streams)
