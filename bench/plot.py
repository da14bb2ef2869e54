"""mlxserver beside each other contestant, as one picture. Needs matplotlib, the extra ``plot``."""

from __future__ import annotations

from pathlib import Path

from bench.report import OWN, Summary, contestants, figures, more_is_better, ordered, ratio
from bench.results import Results

BAR_INCHES = 0.17


def plot(results: Results, target: Path) -> None:
    """A bar for each figure and contestant: how many times as good mlxserver's figure is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    others = [name for name in contestants(results) if name != OWN]
    groups = [
        (f"{workload}: {figure}", [advantage(ratio(played, figure, name), figure) for name in others])
        for workload, played in ordered(results)
        for figure in figures(played)
    ]
    height = 1.2 + BAR_INCHES * (len(others) + 1) * len(groups)
    chart, axes = plt.subplots(figsize=(9, height), layout="constrained")
    for i, name in enumerate(others):
        at = [g * (len(others) + 1) + i for g in range(len(groups))]
        bars = [(y, n) for y, (_, each) in zip(at, groups, strict=True) if (n := each[i]) is not None]
        axes.barh([y for y, _ in bars], [n - 1 for _, n in bars], left=1, height=0.9, label=f"to {name}")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks([g * (len(others) + 1) + (len(others) - 1) / 2 for g in range(len(groups))])
    axes.set_yticklabels([label for label, _ in groups], fontsize=8)
    axes.set_xlabel("times as good as the other; right of 1: mlxserver is ahead")
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize=8)
    chart.savefig(target, dpi=80)
    plt.close(chart)


def advantage(found: Summary | None, figure: str) -> float | None:
    if found is None or not found.median:
        return None
    return found.median if more_is_better(figure) else 1 / found.median
