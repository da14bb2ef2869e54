from __future__ import annotations

from pathlib import Path

import pytest

from bench.report import Summary, failures, ratio, table, targets_table
from bench.results import Record, Results
from bench.targets import TARGETS, Target
from bench.workloads import WORKLOADS

RATE = "tokens/s, 8 streams"


def record(value: float, others: float = 0.0) -> Record:
    return Record({RATE: value}, others=others)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    results = Results(tmp_path / "results.json")
    results.of("tiny", {}).rounds += [
        {"bare loop": record(20.0), "mlx_lm.server": record(5.0), "mlxserver": record(10.0)},
        {"bare loop": record(20.0), "mlx_lm.server": Record(error="it fell"), "mlxserver": record(14.0)},
        {"bare loop": record(10.0), "mlx_lm.server": record(11.0), "mlxserver": record(11.0)},
    ]
    return results


def test_the_ratio_is_the_median_of_the_rounds_ratios(results: Results) -> None:
    found = ratio(results.workloads["tiny"], RATE, "bare loop")
    assert found is not None
    assert sorted(found.values) == [0.5, 0.7, 1.1]
    assert found.median == 0.7


def test_a_round_without_the_other_gives_no_ratio(results: Results) -> None:
    found = ratio(results.workloads["tiny"], RATE, "mlx_lm.server")
    assert found is not None and sorted(found.values) == [1.0, 2.0]
    assert ratio(results.workloads["tiny"], RATE, "llama-server") is None


def test_spread_is_half_the_range_over_the_median() -> None:
    assert Summary((10.0, 14.0, 11.0)).spread == pytest.approx(2 / 11)


def test_the_table(results: Results) -> None:
    head, _, title, row = table(results).splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert [cell.strip() for cell in head.split("|")[1:4]] == ["", "mlxserver", "mlx_lm.server"]
    assert title.startswith("| **streams of a model of 2 layers (3 rounds)**")
    assert cells[:2] == [RATE, "11.0 ±18%"]
    assert cells[-1] == "0.70 (0.50–1.10)"


def test_a_workload_that_met_other_work_says_so(results: Results) -> None:
    results.of("burst", {}).rounds.append({"mlxserver": record(1.0, others=0.8)})
    assert "[others used 0.8 cores]" in table(results)


def test_what_failed_is_told(results: Results) -> None:
    assert failures(results) == ["tiny, round 2, mlx_lm.server: it fell"]


def test_targets(results: Results) -> None:
    (line,) = (line for line in targets_table(results).splitlines() if "2 layers" in line)
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["at least 0.6", "0.70 (0.50–1.10)", "met"]


def test_bounds_may_be_reached() -> None:
    least, most = Target("", "", "", 0.5, at_least=True), Target("", "", "", 0.5)
    assert [least.met(found) for found in (0.4, 0.5, 0.6)] == [False, True, True]
    assert [most.met(found) for found in (0.4, 0.5, 0.6)] == [True, True, False]


def test_every_targets_workload_exists() -> None:
    assert {target.workload for target in TARGETS} <= set(WORKLOADS)
