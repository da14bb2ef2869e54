"""``mlxserver validate``: from the command line to the exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mlxserver import __version__
from mlxserver.engine.config import EngineConfig
from mlxserver.models.errors import ModelError
from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.model import Model
from mlxserver.options import Exit
from mlxserver.validate import plot
from mlxserver.validate.judge import Bounds, Outcome, outcomes
from mlxserver.validate.lab import FEWEST, Lab, Plan
from mlxserver.validate.options import parse, text_of
from mlxserver.validate.report import as_json, console, legend, table

DEFAULT_BOUNDS = {mx.float32: (0.01, 1e-3), mx.float16: (0.25, 0.25), mx.bfloat16: (1.0, 1.0)}
"""By compute type: above which gap a position is decided, and what an exact path may differ by."""


def main(argv: Sequence[str]) -> int:
    """The process's exit code: 1 where a path failed, or the command could not be carried out."""
    # what a path warns of is in its row
    logging.getLogger("mlxserver").setLevel(logging.ERROR)
    try:
        return _validate(parse(argv))
    except Exit as end:
        sys.stdout.write(end.stdout)
        sys.stderr.write(end.stderr)
        return end.code
    except (ModelError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
    return 1


def _validate(options: argparse.Namespace) -> int:
    text = text_of(options.text)
    if options.plot is not None and not plot.is_available():
        raise Exit(1, stderr="error: --plot needs matplotlib: pip install 'mlxserver[plot]'\n")
    source = ModelSource(path=options.model, hf_repo=options.hf_repo)
    model, _ = load_model(source, options.dtype, options.weights)
    lab = _lab(model, options, text)
    bounds = _bounds(options, lab.dtype)
    facts = _facts(model, options, lab)
    out = console()
    out.print(f"{facts['model']} ({facts['architecture']}, weights {facts['weights']}), {facts['text']}")
    out.print(f"{facts['computed_in']}, KV {facts['kv']}; {facts['software']}")
    for line in legend(bounds):
        out.print(line)
    found = _run(lab, bounds)
    out.print(table(found))
    failed = [outcome.name for outcome in found if outcome.verdict == "FAILED"]
    out.print(f"FAILED: {', '.join(failed)}" if failed else "every path holds what it promises")
    _write(options, facts, bounds, found)
    return 1 if failed else 0


def _lab(model: Model, options: argparse.Namespace, text: str) -> Lab:
    tokens = model.tokenizer.encode(text, add_special=True)[: options.n_tokens]
    if model.info.n_ctx_train > 0:
        tokens = tokens[: model.info.n_ctx_train]
    if len(tokens) < FEWEST:
        raise Exit(1, stderr=f"error: {len(tokens)} tokens are too few; at least {FEWEST} are needed\n")
    config = EngineConfig(
        n_slots=1,
        n_ctx=len(tokens),
        n_ctx_slot=2 * len(tokens),
        kv_unified=False,
        n_batch=options.ubatch_size,
        n_ubatch=options.ubatch_size,
        cont_batching=True,
        slot_prompt_similarity=0.0,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        swa_full=options.swa_full,
    )
    sizes = (options.chunks, options.cuts, options.batch, options.kv_types, options.n_decode)
    return Lab(model, config, tokens, Plan.of(len(tokens), *sizes))


def _bounds(options: argparse.Namespace, dtype: mx.Dtype) -> Bounds:
    gap, difference = DEFAULT_BOUNDS.get(dtype, DEFAULT_BOUNDS[mx.bfloat16])
    return Bounds(
        gap=gap if options.gap is None else options.gap,
        difference=difference if options.bound is None else options.bound,
        kl=options.bound_kl,
    )


def _facts(model: Model, options: argparse.Namespace, lab: Lab) -> dict[str, Any]:
    dtype = str(lab.dtype).rpartition(".")[2]
    return {
        "model": Path(model.info.path).name,
        "architecture": model.info.architecture,
        "weights": model.info.ftype,
        "text": f"{len(lab.tokens)} tokens of {options.text or 'the text that comes with mlxserver'}",
        "computed_in": f"computed in {dtype} on the {mx.default_device().type.name}",
        "kv": f"{options.cache_type_k}/{options.cache_type_v}{', --swa-full' if options.swa_full else ''}",
        "software": f"mlxserver {__version__}, mlx {metadata.version('mlx')}, "
        f"mlx-lm {metadata.version('mlx-lm')}",
    }


def _run(lab: Lab, bounds: Bounds) -> list[Outcome]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        bar = progress.add_task("the cold trace", total=None)

        def on_path(name: str, n_paths: int) -> None:
            progress.update(bar, description=name, total=n_paths)

        found = []
        for outcome in outcomes(lab, bounds, on_path):
            found.append(outcome)
            progress.advance(bar)
    return found


def _write(options: argparse.Namespace, facts: dict[str, Any], bounds: Bounds, found: list[Outcome]) -> None:
    if options.json is not None:
        options.json.write_text(as_json(facts, bounds, found), encoding="utf-8")
    if options.plot is not None:
        title = f"{facts['model']}, {facts['computed_in']}, KV {facts['kv']}"
        plot.draw(options.plot, title, found, bounds.difference)
