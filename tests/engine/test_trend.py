"""What grows along a line is learned from samples."""

from __future__ import annotations

import pytest

from mlxserver.engine.trend import Trend


def trend(wary: bool = False) -> Trend:
    return Trend(memory=0.9, spread=64.0, wary=wary)


def test_nothing_is_known_before_the_first_sample() -> None:
    assert not trend().is_known
    assert trend().at(5) == trend().slope == 0


def test_what_grows_is_foreseen() -> None:
    learned = trend()
    for x in range(64, 2048, 128):
        learned.learn(x, 0.002 + 1e-5 * x)
    assert learned.at(4000) == pytest.approx(0.002 + 1e-5 * 4000, rel=0.05)
    assert learned.slope == pytest.approx(1e-5, rel=0.05)


def test_it_never_falls() -> None:
    learned = trend()
    for x in range(64, 2048, 128):
        learned.learn(x, 1.0 - x / 4096)
    assert learned.slope == 0
    assert learned.at(4000) == learned.at(0) > 0


@pytest.mark.parametrize(("wary", "least"), [(False, 1.5), (True, 2.0)])
def test_a_rise_is_followed_at_once_where_it_is_wary(wary: bool, least: float) -> None:
    learned = trend(wary)
    for _ in range(20):
        learned.learn(100, 1.0)
    learned.learn(100, 2.0)
    assert least <= learned.at(100) < least + 0.3
    for _ in range(12):
        learned.learn(100, 0.5)
    assert learned.at(100) == pytest.approx(0.5, rel=0.15)
