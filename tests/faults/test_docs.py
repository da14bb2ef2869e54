"""The table of fault points in the documentation is the list that is tested."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.faults.points import POINTS

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_every_point_has_its_place_in_the_table() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## Fault points")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
    told = Counter(name.strip() for row in rows for name in row[0].split(";"))
    assert told == Counter(point.name for point in POINTS)


def test_there_are_many() -> None:
    assert len(POINTS) >= 20
