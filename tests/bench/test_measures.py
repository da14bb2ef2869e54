from __future__ import annotations

import pytest

from bench.client import Stream
from bench.measures import decode_rate, evaluated, gaps_before, gaps_during, percentile, seconds_of_all


def test_the_rate_counts_while_all_streams_run() -> None:
    first = Stream(0.0, (1.0, 2.0, 3.0, 4.0), n_tokens=4)
    second = Stream(0.0, (2.0, 2.5, 3.0), n_tokens=3)
    assert decode_rate([first, second]) == pytest.approx((1 + 2) / 1.0)


def test_an_event_counts_as_the_tokens_that_it_carries_on_average() -> None:
    assert decode_rate([Stream(0.0, (0.0, 1.0), n_tokens=6)]) == pytest.approx(3.0)


def test_streams_that_do_not_overlap_have_no_rate() -> None:
    with pytest.raises(RuntimeError, match="same time"):
        decode_rate([Stream(0.0, (1.0, 2.0), n_tokens=2), Stream(0.0, (3.0, 4.0), n_tokens=2)])


def test_gaps_before_and_during_an_arrival() -> None:
    times = (1.0, 2.0, 3.0, 7.0, 8.0, 10.0)
    assert gaps_before(times, 3.5) == [1.0, 1.0]
    assert gaps_during(times, 3.5, 7.5) == [4.0, 1.0]


@pytest.mark.parametrize(("percent", "found"), [(50, 2), (51, 3), (75, 3), (95, 4), (100, 4), (1, 1)])
def test_percentile(percent: float, found: float) -> None:
    assert percentile([4, 2, 1, 3], percent) == found


def test_sums_of_streams() -> None:
    streams = [Stream(1.0, n_prompt=10, n_cached=3, ended=4.0), Stream(2.0, n_prompt=5, ended=9.0)]
    assert evaluated(streams) == 12
    assert seconds_of_all(streams) == 8.0
