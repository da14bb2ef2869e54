"""mlxserver, mlx_lm.server and the bare decode loop side by side, on one model in 32-bit floats.

Prints a table of medians over alternating runs and writes all figures as JSON. The method is told in
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.client import decode_rate, measure_arrival, run_stream, run_streams
from bench.contestants import SERVERS, serving

STREAMS = (1, 4, 8)
WORDS = ("apple", "river", "stone", "cloud", "music", "green", "table", "horse")
N_WORDS = 64
LASTING = "green"
"""Repeated by the model for longer than a 700-token prompt takes to be read."""
BARE = "bare loop"

Figures = dict[str, float]


def repeated(word: str, n_words: int, nonce: int) -> str:
    """A prompt that no server has seen; with 64 words, far more of them follow, one token each."""
    return f"{nonce}" + f" {word}" * n_words


def measure_server(name: str, model: Path, n_predict: int, nonce: int, logs: Path) -> Figures:
    with serving(name, model, logs) as (url, startup):
        figures = {"start-up (s)": startup}
        run_stream(url, repeated(WORDS[0], 8, nonce), 4)
        for n in STREAMS:
            prompts = [repeated(word, N_WORDS, nonce + n) for word in WORDS[:n]]
            figures[rate_of(n)] = decode_rate(run_streams(url, prompts, n_predict))
        alone = run_stream(url, repeated("summer", 250, nonce), 2)
        figures["first token, 250-token prompt (s)"] = alone.first_token_seconds
        arrival = measure_arrival(
            url, repeated(LASTING, N_WORDS, nonce), 3 * n_predict, repeated("garden", 700, nonce)
        )
        figures["median gap of a stream (ms)"] = 1e3 * arrival.median_gap
        figures["largest gap while 700 tokens arrive (ms)"] = 1e3 * arrival.largest_gap
        figures["largest / median gap"] = arrival.ratio
        figures["first token of the 700 (s)"] = arrival.first_token
    return figures


def rate_of(streams: int) -> str:
    return f"tokens/s, {streams} stream{'s' if streams > 1 else ''}"


def measure_bare_loop(model: Path, n_predict: int) -> Figures:
    command = [sys.executable, "-m", "bench.bare_loop", "--model", str(model), "--n-predict", str(n_predict)]
    command += ["--prompt", repeated(WORDS[0], N_WORDS, 1), "--streams", *map(str, STREAMS)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rates = json.loads(result.stdout.splitlines()[-1])
    return {rate_of(int(n)): rate for n, rate in rates.items()}


def medians(runs: list[Figures]) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def table(results: dict[str, Figures]) -> str:
    names = list(results)
    rows = [["", *names, "mlxserver / mlx_lm.server", "mlxserver / bare loop"]]
    for key in results["mlxserver"]:
        values = [results[name].get(key) for name in names]
        own = results["mlxserver"][key]
        ratios = [own / other if (other := results[n].get(key)) else None for n in ("mlx_lm.server", BARE)]
        rows.append([key, *map(shown, values), *map(shown, ratios)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def provenance() -> dict[str, Any]:
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    packages = ("mlxserver", "mlx", "mlx-lm", "starlette", "uvicorn")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or "unknown",
        "versions": {name: importlib.metadata.version(name) for name in packages if installed(name)},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}, {os.cpu_count()} cores",
        "openblas": "openblas" in os.environ.get("LD_PRELOAD", ""),
        "load_average_at_start": os.getloadavg()[0],
    }


def installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the SmolLM2 GGUF file")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--n-predict", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for figures and logs")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    folder = args.out / f"{args.model.stem}-f32"
    # In a process of its own, so that the one that measures holds no model.
    subprocess.run([sys.executable, "-m", "bench.convert", str(args.model), str(folder)], check=True)

    about = provenance()
    runs: dict[str, list[Figures]] = {name: [] for name in (*SERVERS, BARE)}
    for number in range(args.runs):
        print(f"run {number + 1} of {args.runs}", flush=True)
        for name in SERVERS:
            figures = measure_server(name, folder, args.n_predict, 1000 * (number + 1), args.out)
            runs[name].append(figures)
            print(f"  {name}: " + ", ".join(f"{k} {shown(v)}" for k, v in figures.items()), flush=True)
        runs[BARE].append(measure_bare_loop(folder, args.n_predict))
        print(f"  {BARE}: " + ", ".join(f"{k} {shown(v)}" for k, v in runs[BARE][-1].items()), flush=True)
    results = {name: medians(figures) for name, figures in runs.items()}
    target = args.out / "results.json"
    target.write_text(json.dumps({**about, "medians": results, "runs": runs}, indent=1) + "\n")
    print("\n" + table(results))
    print(f"\nmedians of {args.runs} runs; {about['machine']}; commit {about['commit']}; more in {target}")


if __name__ == "__main__":
    main()
