"""Eight clients of mixed traffic against one server for a while: ``python -m tests.load.soak --minutes 30``.

Ends with code 1 where an answer is not the cold one, a request fails that should not, a slot is not idle at
the end, or memory rises over the last two thirds of the time. docs/reliability.md tells what is played.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.contestants import python
from bench.running import running
from tests.load.cases import pool, words
from tests.load.cold import Cold, Difference
from tests.load.http import ask
from tests.load.memory import MIB, Line, Watch, line, metrics, too_steep
from tests.load.models import CONTEXT, N_ADAPTERS, Served, gguf_model, tiny_model
from tests.load.traffic import LONGEST_ANSWER, SLOT_FILES, Client, Tally

N_CLIENTS, N_SLOTS = 8, 6
N_SAMPLES = 300
IDLE_SECONDS = 30
TIE = 2e-5
"""Nats: where the cold run's best two tokens are as close as this, sums in another order may swap them."""
EXACT = "-ctk f32 -ctv f32 --dtype float32 --weights dequantize --no-warmup --slots --metrics"


@dataclass
class Report:
    """``problems`` are what makes the run fail."""

    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ties: list[Difference] = field(default_factory=list)
    largest_delta: float = 0.0
    memory: dict[str, Line] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def soak(served: Served, seconds: float, n_cases: int, seed: int, folder: Path) -> Report:
    """Plays it; ``folder`` gets the logs, slot files and the disk tier's."""
    cases = pool(random.Random(seed), n_cases, served.longest)
    with running(command(served, alone=True, folder=folder), folder / "cold.log") as alone:
        cold = Cold(alone.url)
        cold.learn(cases)
        late = served.adapters[-1].name
        with running(command(served, alone=False, folder=folder), folder / "soak.log") as server:
            for name in SLOT_FILES:  # else the first to restore finds nothing
                ask(server.url, "/slots/0?action=save", {"filename": name})
            _fill(server.url, served)
            tally, late_lock, started = Tally(), threading.Lock(), time.monotonic()
            clients = [
                Client(server.url, random.Random(f"{seed} {i}"), cases, cold, tally, N_SLOTS, late, late_lock)
                for i in range(N_CLIENTS)
            ]
            with Watch(server.url, server.pid, max(0.25, seconds / N_SAMPLES)) as watch:
                _play(clients, started + seconds)
            report = Report(seconds=time.monotonic() - started, requests=dict(sorted(tally.done.items())))
            report.problems += _not_idle(server.url)
            report.metrics = metrics(server.url)
    report.errors, report.largest_delta = tally.errors, cold.largest_delta
    report.differences = [each for each in tally.differences if not is_tie(each)]
    report.ties = [each for each in tally.differences if is_tie(each)]
    report.memory = {name: line(watch.samples, name) for name in ("resident", "active", "cached")}
    if watch.error:
        report.problems.append(f"the watch ended: {watch.error!r}")
    _judge(report, (folder / "soak.log").read_text(errors="replace"))
    return report


def is_tie(found: Difference) -> bool:
    return found.gap is not None and found.gap < TIE


def command(served: Served, alone: bool, folder: Path) -> list[str]:
    """The server of the cold answers has one slot, keeps nothing, and has all adapters from the start."""
    adapters = served.adapters if alone else served.adapters[:-1]
    loras = [part for path in adapters for part in ("--lora", str(path))]
    common = python("mlxserver", "-m", str(served.model), *EXACT.split(), *loras, "--lora-init-without-apply")
    if alone:
        return [*common, *f"-np 1 -c {CONTEXT} --cache-ram 0 --no-cache-prompt".split()]
    for name in ("slots", "disk"):
        (folder / name).mkdir(exist_ok=True)
    options = f"-np {N_SLOTS} -c {N_SLOTS * CONTEXT} --cache-ram {served.cache_ram}"
    options += f" --cache-disk-size {served.cache_disk}"
    folders = ["--slot-save-path", str(folder / "slots"), "--cache-disk", str(folder / "disk")]
    late = ["--lora-dir", str(served.adapters[0].parent), "--max-loras", str(N_ADAPTERS)]
    return [*common, *options.split(), *folders, *late]


def _fill(url: str, served: Served) -> None:
    """Every slot as long as it will ever be: buffers are as long as the longest row, and grow in steps."""
    prompt = words(random.Random(0), served.longest * 5 // 4)
    body = {"prompt": prompt, "n_predict": LONGEST_ANSWER, "ignore_eos": True}
    with ThreadPoolExecutor(N_SLOTS) as threads:
        list(threads.map(lambda slot: ask(url, "/completion", body | {"id_slot": slot}), range(N_SLOTS)))


def _play(clients: Sequence[Client], until: float) -> None:
    threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _not_idle(url: str) -> list[str]:
    """After a while in which those that were abandoned may end."""
    end = time.monotonic() + IDLE_SECONDS
    while True:
        busy = [slot["id"] for slot in ask(url, "/slots") if slot["is_processing"]]
        waiting = metrics(url)["llamacpp:requests_deferred"]
        if not busy and not waiting:
            return []
        if time.monotonic() > end:
            return [f"slots {busy} are not idle at the end, {waiting:.0f} requests wait"]
        time.sleep(0.1)


def _judge(report: Report, log: str) -> None:
    found = report.metrics
    if report.differences:
        report.problems.append(f"{len(report.differences)} answers are not the cold ones")
    if report.errors:
        report.problems.append(f"{report.requests['errors']} requests failed")
    failed = {
        name: n
        for name, n in found.items()
        if name.startswith("mlxserver:http_requests_total") and '"5xx"' in name and "embedding" not in name
    }
    if failed:
        report.problems.append(f"the server answered 5xx: {failed}")
    if not report.requests.get("answers compared"):
        report.problems.append("no answer was compared")
    if not found["mlxserver:cache_evictions_total"]:
        report.problems.append("nothing was evicted")
    report.problems += too_steep(report.memory)
    if tracebacks := len(re.findall("^Traceback", log, re.MULTILINE)):
        report.problems.append(f"{tracebacks} tracebacks in the server's log")


def told(report: Report) -> str:
    lines = [f"{report.seconds:.0f} s", *(f"{n:>9} {what}" for what, n in report.requests.items())]
    lines.append(f"largest difference of a log-probability: {report.largest_delta:.1e} nats")
    for name, slope in report.memory.items():
        lines.append(
            f"{name} memory over the last two thirds: {slope.per_minute / 1024:+.1f} KiB/min, "
            f"{slope.rise / MIB:+.2f} MiB in all, {slope.mean / MIB:.1f} MiB on average"
        )
    lines += [
        f"{'tie' if is_tie(each) else 'difference'}: {each}" for each in report.ties + report.differences
    ]
    lines += [f"error: {each}" for each in report.errors]
    return "\n".join([*lines, *(f"FAILED: {problem}" for problem in report.problems or ["nothing"])])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load.soak", description=__doc__)
    parser.add_argument("-m", "--model", type=Path, help="a GGUF file; without it a random model of 2 layers")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--cases", type=int, default=300, help="different requests whose answers are known")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="for logs, files and report.json; else one that goes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        served = gguf_model(given.model, folder) if given.model else tiny_model(folder)
        report = soak(served, given.minutes * 60, given.cases, given.seed, folder)
        (folder / "report.json").write_text(json.dumps(asdict(report), indent=1))
    print(told(report), flush=True)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
