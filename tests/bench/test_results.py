from __future__ import annotations

from pathlib import Path

from bench.others import busy_seconds
from bench.results import Played, Record, Results

BASIS = {"commit": "abc", "quick": False}


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.about = {"machine": "this"}
    results.of("burst", BASIS).rounds.append(
        {"a": Record({"x (s)": 1.5}, others=0.25), "b": Record(error="no")}
    )
    results.save()
    again = Results(results.file)
    assert (again.about, again.workloads) == (results.about, results.workloads)


def test_records_of_another_commit_are_dropped(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.of("burst", BASIS).rounds.append({"a": Record({})})
    assert results.of("burst", BASIS).rounds
    assert not results.of("burst", BASIS | {"commit": "def"}).rounds


def test_what_failed_or_was_not_played_is_missing() -> None:
    played = Played(BASIS, [{"a": Record({"x": 1.0}), "b": Record(error="fell")}])
    assert played.missing(0, ["a", "b", "c"]) == ["b", "c"]


def test_each_round_begins_with_another_contestant() -> None:
    played = Played(BASIS)
    orders = [played.missing(number, ["a", "b", "c"]) for number in range(4)]
    assert ["".join(order) for order in orders] == ["abc", "bca", "cab", "abc"]


def test_idle_time_and_waiting_for_the_disk_are_not_busy() -> None:
    stat = "cpu  100 10 20 5000 700 3 4 5 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert busy_seconds(stat) * 100 == 100 + 10 + 20 + 3 + 4 + 5
