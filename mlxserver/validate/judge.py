"""Runs the paths and says which of them hold what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from mlxserver.models.errors import ModelError
from mlxserver.validate.lab import Lab
from mlxserver.validate.metrics import Differences, Summary, compare, joined, summary
from mlxserver.validate.paths import Kind, NotPossible, Path, all_paths
from mlxserver.validate.rig import PathError

Verdict = Literal["ok", "FAILED", "not possible"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """``difference``: of an exact path, at any position. ``kl``: of a bounded one, the mean.

    ``gap``: a position is decided where the cold trace's two best log-probabilities are further apart.
    """

    gap: float
    difference: float
    kl: float

    def hold(self, kind: Kind, found: Summary) -> bool:
        """Not for NaN."""
        if kind == "exact":
            return found.max_difference <= self.difference and found.n_disagree == 0
        return found.mean_kl <= self.kl


@dataclass(frozen=True, slots=True)
class Outcome:
    """``found`` and ``summary`` are None where the path gave no trace; ``note`` says why."""

    name: str
    kind: Kind
    verdict: Verdict
    note: str = ""
    found: Differences | None = None
    summary: Summary | None = None


def outcomes(lab: Lab, bounds: Bounds, on_path: Callable[[str, int], None]) -> Iterator[Outcome]:
    """``on_path`` is told each path's name and how many there are, before it is run."""
    paths = all_paths(lab)
    for path in paths:
        on_path(path.name, len(paths))
        yield judge(lab, path, bounds)


def judge(lab: Lab, path: Path, bounds: Bounds) -> Outcome:
    """Never raises what the model or a path raises: that is a failure of the path."""
    lab.note = ""
    try:
        cold = lab.cold(path.target)
        found = joined([compare(cold, rows) for rows in path.run(lab)])
    except (NotPossible, ModelError) as error:
        return Outcome(path.name, path.kind, "not possible", str(error))
    except PathError as error:
        return Outcome(path.name, path.kind, "FAILED", str(error))
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(path.name, path.kind, "FAILED", line)
    result = summary(found, bounds.gap)
    verdict: Verdict = "ok" if bounds.hold(path.kind, result) else "FAILED"
    return Outcome(path.name, path.kind, verdict, lab.note, found, result)
