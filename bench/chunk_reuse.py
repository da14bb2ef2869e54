"""Time to the first token of a 1,500-token prompt of which 100 tokens near the beginning have gone, with
and without chunk reuse, in one run.

  python -m bench.chunk_reuse --model FILE.gguf [--runs N] [--json FILE]

Both alternate. Before each, the server reads the whole prompt (not timed), a new one each time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.running import Server, running
from mlxserver.validate.options import text_of

N_PROMPT, FIRST, N_REMOVED = 1500, 20, 100
SHORTEST_RUN = 256
OPTIONS = "-c 2048 -np 1 -ctk f32 -ctv f32 --dtype float32"


def seconds(server: Server, prompt: list[int], n_cache_reuse: int) -> tuple[float, int]:
    """To the one token of the edited prompt, and how many of its tokens were not evaluated."""
    server.ask(prompt, cache_prompt=False)
    edited = prompt[:FIRST] + prompt[FIRST + N_REMOVED :]
    begin = time.perf_counter()
    answer = server.ask(edited, cache_prompt=True, n_cache_reuse=n_cache_reuse)
    return time.perf_counter() - begin, answer["timings"]["cache_n"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    command = [sys.executable, "-m", "mlxserver", "-m", str(args.model), *shlex.split(OPTIONS)]
    times: dict[int, list[float]] = {SHORTEST_RUN: [], 0: []}
    with running(command, Path(tempfile.mkdtemp()) / "server.log") as server:
        tokens = server.post("/tokenize", {"content": text_of(None)})["tokens"]
        for run in range(args.runs):
            for which, n_cache_reuse in enumerate(times):
                turn = 2 * run + which
                prompt = (tokens[turn:] + tokens * 3)[:N_PROMPT]
                took, cached = seconds(server, prompt, n_cache_reuse)
                times[n_cache_reuse].append(took)
                print(f"run {run}: n_cache_reuse {n_cache_reuse}, {cached} cached, {took:.2f} s", flush=True)
    reused, evaluated = (statistics.median(each) for each in times.values())
    print(f"medians: with reuse {reused:.2f} s, without {evaluated:.2f} s: {reused / evaluated:.1%}")
    if args.json:
        report = {"with_reuse_s": times[SHORTEST_RUN], "without_s": times[0], "ratio": reused / evaluated}
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
