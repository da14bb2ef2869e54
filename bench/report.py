"""Medians, spread and ratios of what was played, as one table; and which targets are met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Played, Record, Results
from bench.targets import TARGETS, Target
from bench.workloads import WORKLOADS

OWN = "mlxserver"
MANY_OTHERS = 0.25
"""Cores; a workload whose rounds met more of other processes is marked."""


@dataclass(frozen=True)
class Summary:
    """Of one figure over the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half of the range, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median if self.median else 0.0


def more_is_better(figure: str) -> bool:
    return "/s" in figure


def summary(played: Played, contestant: str, figure: str) -> Summary | None:
    found = [each[contestant] for each in played.rounds if contestant in each]
    values = tuple(r.figures[figure] for r in found if r.figures and figure in r.figures)
    return Summary(values) if values else None


def ratio(played: Played, figure: str, other: str) -> Summary | None:
    """mlxserver's figure over the other's, round by round: both met the same machine."""
    pairs = []
    for each in played.rounds:
        own, its = (value(each.get(name), figure) for name in (OWN, other))
        if own is not None and its:
            pairs.append(own / its)
    return Summary(tuple(pairs)) if pairs else None


def value(record: Record | None, figure: str) -> float | None:
    return (record.figures or {}).get(figure) if record else None


def contestants(results: Results) -> list[str]:
    """In the order of their first appearance, mlxserver first."""
    names = {name: None for p in results.workloads.values() for each in p.rounds for name in each}
    return sorted(names, key=lambda name: (name != OWN, name.endswith("loop")))


def figures(played: Played) -> list[str]:
    found = {figure: None for each in played.rounds for r in each.values() for figure in r.figures or {}}
    return list(found)


def table(results: Results) -> str:
    names = contestants(results)
    others = names[1:]
    rows = [["", *names, *(f"to {name}" for name in others)]]
    for workload, played in ordered(results):
        rows.append([f"**{title(workload, played)}**", *[""] * (len(rows[0]) - 1)])
        for figure in figures(played):
            cells = [shown(summary(played, name, figure)) for name in names]
            ratios = [shown_ratio(ratio(played, figure, name)) for name in others]
            rows.append([figure, *cells, *ratios])
    return markdown(rows)


def ordered(results: Results) -> list[tuple[str, Played]]:
    return [(name, results.workloads[name]) for name in WORKLOADS if name in results.workloads]


def title(workload: str, played: Played) -> str:
    n = len(played.rounds)
    told = f"{WORKLOADS[workload].title} ({n} round{'s' if n > 1 else ''})"
    busy = [r.others for each in played.rounds for r in each.values() if r.others is not None]
    if busy and statistics.median(busy) > MANY_OTHERS:
        told += f" [others used {statistics.median(busy):.1f} cores]"
    return told


def markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def shown(found: Summary | None) -> str:
    return f"{shown_number(found.median)} ±{found.spread:.0%}" if found else ""


def shown_ratio(found: Summary | None) -> str:
    if found is None:
        return ""
    return f"{found.median:.2f} ({min(found.values):.2f}–{max(found.values):.2f})"


def shown_number(n: float) -> str:
    return f"{n:.3f}" if n < 1 else f"{n:.2f}" if n < 10 else f"{n:.1f}" if n < 1000 else f"{n:.0f}"


def targets_table(results: Results) -> str:
    rows = [["target", "bound", "found", ""]]
    for target in TARGETS:
        found = outcome(results, target)
        sign = "at least" if target.at_least else "at most"
        cells = [target.title, f"{sign} {target.bound:g}", shown_ratio(found)]
        verdict = "not played" if found is None else "met" if target.met(found.median) else "not met"
        rows.append([*cells, verdict])
    return markdown(rows)


def outcome(results: Results, target: Target) -> Summary | None:
    played = results.workloads.get(target.workload)
    if played is None:
        return None
    if target.over:
        return ratio(played, target.figure, target.over)
    return summary(played, OWN, target.figure)


def failures(results: Results) -> list[str]:
    return [
        f"{workload}, round {number + 1}, {name}: {record.error}"
        for workload, played in ordered(results)
        for number, each in enumerate(played.rounds)
        for name, record in each.items()
        if record.error
    ]
