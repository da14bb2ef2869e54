"""The soak for a few seconds, and that each thing that may go wrong makes it fail."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.load import soak as soaking
from tests.load.cases import Case, pool
from tests.load.cold import Cold, Difference, request
from tests.load.dialects import DIALECTS, Answer
from tests.load.memory import MIB, Line, Sample, line, too_steep
from tests.load.models import tiny_model
from tests.load.soak import Report, is_tie, soak, told

COMPLETION = Case({"prompt": "a", "n_predict": 2, "temperature": 0}, False, "half a")
CALM = {"resident": Line(0, 0, 1), "active": Line(0, 0, 1)}
EVICTED = {"mlxserver:cache_evictions_total": 3.0}
ERRORS = 'mlxserver:http_requests_total{route="/completion",status="5xx"}'


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_twenty_seconds(tmp_path: Path) -> None:
    report = soak(tiny_model(tmp_path), 20, 40, 1, tmp_path)
    assert report.problems == [], told(report)
    assert report.requests["answers compared"] > 50
    assert all(report.requests[f"answers of {name}"] for name in DIALECTS)
    assert report.requests["abandoned before the end"] and report.requests["slot action"]


# ---------------------------------------------------------------------- verdicts


def judged(report: Report, log: str = "") -> list[str]:
    soaking._judge(report, log)
    return report.problems


def sound() -> Report:
    return Report(requests={"answers compared": 1, "errors": 1}, metrics=dict(EVICTED), memory=dict(CALM))


def test_a_sound_run_has_no_problems() -> None:
    assert judged(sound()) == []


def test_what_is_wrong_is_told() -> None:
    different = Difference("case 1", "a", "b", 0.5)
    steep = CALM | {"active": Line(1, 5 * MIB, 1)}
    assert "1 answers" in judged(replace(sound(), differences=[different]))[0]
    assert "1 requests failed" in judged(replace(sound(), errors=["x"]))[0]
    assert "5xx" in judged(replace(sound(), metrics=EVICTED | {ERRORS: 1.0}))[0]
    assert "no answer" in judged(replace(sound(), requests={}))[0]
    assert "evicted" in judged(replace(sound(), metrics={"mlxserver:cache_evictions_total": 0.0}))[0]
    assert "active memory rises by 5.0 MiB" in judged(replace(sound(), memory=steep))[0]
    assert "1 tracebacks" in judged(sound(), "a\nTraceback (most recent call last):\n")[0]


@pytest.mark.parametrize("gap, tie", [(None, False), (1e-6, True), (1e-3, False)])
def test_only_close_tokens_are_a_tie(gap: float | None, tie: bool) -> None:
    assert is_tie(Difference("", "", "", gap)) is tie


# ---------------------------------------------------------------------- answers


@pytest.fixture
def cold() -> Cold:
    known = Answer("ab", (1, 2), [[(1, -0.5), (3, -1.0)], [(2, -0.1), (4, -3.0)]])
    made = Cold("", {(0, False): known})
    made._gap = lambda *of: 0.5  # type: ignore[assignment, misc, method-assign]
    return made


@pytest.mark.parametrize(
    "got, differs",
    [
        (Answer("ab"), False),
        (Answer("a"), True),
        (Answer("ab", (1, 2)), False),
        (Answer("ab", (1, 3)), True),
        (Answer("ab", (1, 2), [[(1, -0.5004), (9, -1.0)], [(2, -0.1)]]), False),
        (Answer("ab", (1, 2), [[(1, -0.502)], [(2, -0.1)]]), True),
        (Answer("ab", (1, 2), [[(1, -0.5)]]), True),
    ],
)
def test_answers_are_compared(cold: Cold, got: Answer, differs: bool) -> None:
    assert (cold.compare(0, COMPLETION, False, got, "") is not None) is differs


def test_scales_are_always_told() -> None:
    assert request(COMPLETION)["lora"] == [{"id": 0, "scale": 0.5}]
    assert request(replace(COMPLETION, adapters="base"))["lora"] == [{"id": 0, "scale": 0.0}]


def test_every_case_has_a_dialect_and_every_dialect_a_case() -> None:
    cases = pool(random.Random(0), 200, 300)
    for case in cases:
        assert any(dialect.can(case) for dialect in DIALECTS.values())
    for dialect in DIALECTS.values():
        assert any(dialect.can(case) for case in cases)


# ---------------------------------------------------------------------- memory


def samples(*active: int) -> list[Sample]:
    return [Sample(60.0 * (i + 1), 0, n, 0) for i, n in enumerate(active)]


def test_the_first_third_does_not_count() -> None:
    found = line(samples(0, 0, 1000, 1000, 1000, 1000, 1000, 1000, 1000), "active")
    assert found == Line(pytest.approx(0), pytest.approx(0), 1000)


def test_slopes_are_bytes_a_minute() -> None:
    found = line(samples(*range(0, 90, 10)), "active")
    assert (found.per_minute, found.rise) == (pytest.approx(10), pytest.approx(60))


@pytest.mark.parametrize("rise, bad", [(4 * MIB, 0), (4.1 * MIB, 1), (-9 * MIB, 0)])
def test_memory_may_rise_so_much_only(rise: float, bad: int) -> None:
    assert len(too_steep(CALM | {"active": Line(1, rise, 1)})) == bad
