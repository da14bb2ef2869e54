"""Time to the first token of a 1,500-token prompt: evaluated, and restored from disk by a new process; then
under each policy on a disk that was slowed down. All in one run.

  python -m bench.disk_restore --model FILE.gguf [--runs N] [--delays SECONDS ...] [--json FILE]

The seconds of a delay are those that each file of 32 tokens takes more.
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
from typing import Any

from bench.running import Server, running
from mlxserver.validate.options import text_of

N_PROMPT = 1500
CHUNK_TOKENS = 256
OPTIONS = "-c 2048 -np 1 -ctk f32 -ctv f32 --dtype float32 --cache-ram 2048"
POLICIES = ("best-effort", "timeout", "wait")
TIMEOUT_MS = 1000


def first_token(server: Server, prompt: list[int]) -> tuple[float, int]:
    """(seconds, tokens that were not evaluated)."""
    begin = time.perf_counter()
    answer = server.ask(prompt)
    return time.perf_counter() - begin, answer["timings"]["cache_n"]


class Rig:
    """Servers one after the other on one folder."""

    def __init__(self, model: Path) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._model = model

    def server(self, *options: str, delay: float = 0.0) -> Any:
        """A new process; what runs before has ended and has written all."""
        begin = [sys.executable, "-m", "bench.slow_disk", str(delay), "-m", str(self._model)]
        disk = ["--cache-disk", str(self._folder / "disk"), *options]
        return running([*begin, *shlex.split(OPTIONS), *disk], self._folder / "server.log")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--delays", type=float, nargs="*", default=[0.01, 0.1])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rig = Rig(args.model)
    evaluated: list[float] = []
    restored: list[float] = []
    with rig.server() as server:
        tokens = server.post("/tokenize", {"content": text_of(None)})["tokens"]
        prompts = [(tokens[3 * run :] + tokens * 3)[:N_PROMPT] for run in range(args.runs)]
        first_token(server, tokens[-300:])  # the first prompt of a process is no measure
        for prompt in prompts:
            seconds, cached = first_token(server, prompt)
            print(f"evaluated: {seconds:.2f} s ({cached} cached)", flush=True)
            evaluated.append(seconds)
    for prompt in prompts:
        with rig.server() as server:
            seconds, cached = first_token(server, prompt)
            print(f"restored: {seconds:.2f} s ({cached} cached)", flush=True)
            restored.append(seconds)
    cold, warm = statistics.median(evaluated), statistics.median(restored)
    print(f"medians: restored {warm:.3f} s, evaluated {cold:.2f} s: {warm / cold:.1%}", flush=True)
    report: dict[str, Any] = {"evaluated_s": evaluated, "restored_s": restored, "ratio": warm / cold}
    report["policies"] = [
        policy_row(rig, prompts[0], policy, delay, cold) for delay in args.delays for policy in POLICIES
    ]
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def policy_row(rig: Rig, prompt: list[int], policy: str, delay: float, cold: float) -> dict[str, Any]:
    options = ["--cache-disk-prefetch", policy]
    if policy == "timeout":
        options += ["--cache-disk-timeout", str(TIMEOUT_MS)]
    with rig.server(*options, delay=delay) as server:
        seconds, cached = first_token(server, prompt)
    chunk = cold * CHUNK_TOKENS / len(prompt)
    later = seconds - cold
    print(
        f"{delay * 1e3:5.0f} ms a file, {policy:11}: {seconds:6.2f} s, {cached:4} tokens from disk; "
        f"{later:+.2f} s against evaluating (a chunk takes {chunk:.2f} s)",
        flush=True,
    )
    return {"delay_s": delay, "policy": policy, "seconds": seconds, "cached": cached, "later_s": later}


if __name__ == "__main__":
    main()
