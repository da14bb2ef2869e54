"""The outcomes as a table on the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mlxserver.validate.judge import Bounds, Outcome
from mlxserver.validate.metrics import N_TOP

COLUMNS = ("path", "must be", "positions", "max Δ", "mean Δ", "max KL", "mean KL", "decided", "other token")
WIDTH = 250
"""Of a table that is not written to a terminal."""


def legend(bounds: Bounds) -> list[str]:
    """What the figures are, and what the bounds are."""
    return [
        f"Δ: |log p − log q| of the cold trace's {N_TOP} best tokens and the text's own next one, in nats.",
        "KL: Σ p (log p − log q) over the whole vocabulary; p is the cold trace.",
        f"decided: the cold trace's two best tokens are more than {bounds.gap:g} nats apart; "
        "other token: of these, those where the path's best token is another one.",
        f"exact: max Δ at most {bounds.difference:g} and no other token. "
        f"bounded: mean KL at most {bounds.kl:g}.",
    ]


def console(stderr: bool = False) -> Console:
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def table(outcomes: Sequence[Outcome]) -> Table:
    """Markdown's own layout, so that it can be put into a document as it is."""
    made = Table(box=box.MARKDOWN)
    for index, name in enumerate((*COLUMNS, "")):
        made.add_column(name, justify="left" if index in (0, 1, 9) else "right", no_wrap=index < 9)
    for outcome in outcomes:
        made.add_row(*cells(outcome), style="red" if outcome.verdict == "FAILED" else None)
    return made


def cells(outcome: Outcome) -> list[str]:
    found = outcome.summary
    figures = [""] * 7
    if found is not None:
        sizes = (found.max_difference, found.mean_difference, found.max_kl, found.mean_kl)
        figures = [str(found.n), *(f"{size:.1e}" for size in sizes)]
        figures += [str(found.n_decided), str(found.n_disagree)]
    note = f": {outcome.note}" if outcome.note else ""
    return [outcome.name, outcome.kind, *figures, outcome.verdict + note]


def as_json(facts: Mapping[str, Any], bounds: Bounds, outcomes: Sequence[Outcome]) -> str:
    report = {**facts, "bounds": asdict(bounds), "legend": legend(bounds)}
    report["passed"] = all(outcome.verdict != "FAILED" for outcome in outcomes)
    report["paths"] = [_row(outcome) for outcome in outcomes]
    # JSON knows no NaN
    return json.dumps(json.loads(json.dumps(report), parse_constant=str), indent=1) + "\n"


def _row(outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {
        "path": outcome.name,
        "must_be": outcome.kind,
        "verdict": outcome.verdict,
        "note": outcome.note,
    }
    if outcome.summary is not None and outcome.found is not None:
        found = outcome.found
        row |= asdict(outcome.summary)
        row["by_position"] = {name: getattr(found, name).tolist() for name in type(found).__slots__}
    return row
