"""What adapters cost a decode step: none in use, and several in one forward pass against one pass for each.

  python -m bench.adapter_steps --model SmolLM2-135M-Instruct.Q4_1.gguf [--rank 16] [--json FILE]

Random adapters of one rank on every linear layer. Variants take turns: a busy machine slows all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from mlxserver.models.load import ModelSource, load_model
from mlxserver.models.lora.adapter import Adapter, LowRank
from mlxserver.models.lora.loaded import LoadedAdapters
from mlxserver.models.lora.targets import find_targets

ROWS, ADAPTERS = 8, 4
PROMPT = 64
"""Tokens before the first step."""


def random_adapter(module: Any, seed: int, rank: int) -> Adapter:
    """Of small values: the model goes on talking."""
    key = mx.random.key(seed)
    parts = {}
    for path, target in find_targets(module).items():
        if target.kind == "linear":
            key, of_a, of_b = mx.random.split(key, 3)
            a, b = target.shapes(rank)
            parts[path] = LowRank(
                mx.random.normal(a, target.dtype, scale=0.01, key=of_a),
                mx.random.normal(b, target.dtype, scale=0.01, key=of_b),
                scale=1.0,
            )
    mx.eval([(part.a, part.b) for part in parts.values()])
    return Adapter("", f"adapter {seed}", parts)


def stepper(module: Any, n_rows: int) -> Callable[[], None]:
    """A decode step of ``n_rows`` rows behind a prompt of their own."""
    cache = make_prompt_cache(module)
    tokens = mx.arange(n_rows * PROMPT).reshape(n_rows, PROMPT) % 1000
    last = [module(tokens, cache=cache)[:, -1].argmax(-1)]
    mx.eval(last)

    def step() -> None:
        last[0] = module(last[0][:, None], cache=cache)[:, -1].argmax(-1)
        mx.eval(last)

    return step


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def measure(module: Any, rank: int, n_steps: int) -> dict[str, float]:
    """Medians in ms."""
    adapters = [random_adapter(module, seed, rank) for seed in range(ADAPTERS)]
    loaded = LoadedAdapters(module)
    names = [one.digest for one in adapters]
    share = ROWS // ADAPTERS
    plain, wrapped, mixed = (stepper(module, ROWS) for _ in range(3))
    grouped = [stepper(module, share) for _ in names]
    times: dict[str, list[float]] = {"without": [], "none in use": [], "one forward": [], "one each": []}

    def each() -> None:
        for name, step in zip(names, grouped, strict=True):
            loaded.use([((name, 1.0),)] * share)
            step()

    for _ in range(n_steps):
        times["without"].append(timed(plain))
        for one in adapters:
            loaded.add(one)
        times["none in use"].append(timed(wrapped))
        loaded.use([((name, 1.0),) for name in names for _ in range(share)])
        mixed()  # puts the matrices together, which a run of steps does once
        times["one forward"].append(timed(mixed))
        times["one each"].append(timed(each))
        for name in names:
            loaded.remove(name)
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model, _ = load_model(ModelSource(path=str(args.model)))
    found = measure(model.module, args.rank, args.steps)
    for name, value in found.items():
        print(f"{name:12} {value:8.1f} ms a step of {ROWS} rows")
    print(f"none in use / without: {found['none in use'] / found['without']:.3f}")
    print(f"one each / one forward, {ADAPTERS} adapters: {found['one each'] / found['one forward']:.2f}")
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
