"""The differences along the text, as a picture; matplotlib is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mlxserver.validate.judge import Outcome

SMALLEST = 1e-9
"""Differences below are drawn here: the scale is logarithmic."""


def is_available() -> bool:
    return find_spec("matplotlib") is not None


def draw(path: Path, title: str, outcomes: Sequence[Outcome], bound: float) -> None:
    """A PNG: exact paths above, with their bound, bounded ones below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    figure.suptitle(title)
    for axes, kind in zip(figure.subplots(2, 1, sharex=True), ("exact", "bounded"), strict=True):
        for outcome in outcomes:
            if outcome.kind == kind and outcome.found is not None:
                found = outcome.found
                axes.plot(found.position, np.maximum(found.largest, SMALLEST), label=outcome.name, lw=0.8)
        axes.set_yscale("log")
        axes.set_ylabel(f"{kind}: largest |log p − log q| (nats)")
        if kind == "exact":
            axes.axhline(bound, color="black", ls="--", lw=0.8, label="bound")
        if axes.lines:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="x-small")
    axes.set_xlabel("position in the text")
    figure.savefig(path, format="png", dpi=120)
