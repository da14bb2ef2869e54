"""Tiny models under validation."""

from __future__ import annotations

from typing import Any

from mlxserver.engine.config import EngineConfig
from mlxserver.models.model import Model, ModelInfo
from mlxserver.validate.judge import Bounds, Outcome, judge, outcomes
from mlxserver.validate.lab import Lab, Plan
from mlxserver.validate.options import text_of
from mlxserver.validate.paths import all_paths
from tests.engine.bench import CONFIG, Letters
from tests.models import tiny

BOUNDS = Bounds(gap=0.01, difference=1e-3, kl=0.5)


def lab_of(module: Any, n_tokens: int = 96, kv_types: tuple[str, ...] = (), **changes: Any) -> Lab:
    """Prompt chunks of 32 tokens, cut where chunks end and where they do not."""
    info = ModelInfo("tiny", "tiny", tiny.VOCAB, 512, tiny.HIDDEN, 0, 0, "all F32")
    config = EngineConfig(**{**{f: getattr(CONFIG, f) for f in CONFIG.__slots__}, **changes})
    plan = Plan.of(n_tokens, (1, 7), (1, 24, 64), (1, 2, 4), kv_types, 12)
    return Lab(Model(module, Letters(), info), config, list(text_of(None).encode())[:n_tokens], plan)


def judged(lab: Lab, bounds: Bounds = BOUNDS) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in outcomes(lab, bounds, lambda name, n: None)}


def judged_one(lab: Lab, name: str, bounds: Bounds = BOUNDS) -> Outcome:
    (path,) = (path for path in all_paths(lab) if path.name == name)
    return judge(lab, path, bounds)


def verdicts(found: dict[str, Outcome]) -> dict[str, str]:
    return {name: outcome.verdict for name, outcome in found.items()}
