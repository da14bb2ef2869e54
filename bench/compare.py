"""Servers side by side on the same weights: medians, spread and ratios of everything in bench/workloads.

Results are kept in a file as they come; a later call goes on where an earlier one ended, and plays anew what
belongs to another commit. docs/benchmarks.md tells the method.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import SERVERS, Command, Weights, llama_server, python
from bench.others import OthersMeter
from bench.report import failures, shown_number, table, targets_table
from bench.results import Record, Results, about_machine, commit
from bench.running import running
from bench.texts import lasting
from bench.weights import prepared
from bench.workload import Figures, Play, Workload
from bench.workloads import WORKLOADS
from bench.workloads.streams import Streams, rate_label

Contestant = Callable[[str, Weights, int], Figures]
"""Plays a workload, by name, in a round."""
BARE = {"bare loop": "eager", "pipelined loop": "pipelined", "compiled loop": "compiled"}
"""Contestant -> the loop of ``bench.bare_loop``."""


@dataclass(frozen=True)
class Stage:
    """Where and how large everything is played."""

    out: Path
    quick: bool

    def server(self, name: str, command: Command) -> Contestant:
        def measure(workload: str, weights: Weights, round: int) -> Figures:
            work = WORKLOADS[workload]
            peak = self.out / "peak_memory"
            peak.unlink(missing_ok=True)
            arguments = command(weights, work.needs)
            if work.watch_memory and arguments[:2] == python():
                arguments = python("bench.peak_memory", str(peak), *arguments[2:])
            with running(arguments, self.out / f"{name}.log") as server:
                return work.play(Play(server, weights, round, self.quick, peak))

        return measure

    def bare_loop(self, loop: str) -> Contestant:
        def measure(workload: str, weights: Weights, round: int) -> Figures:
            streams = WORKLOADS[workload].play
            assert isinstance(streams, Streams)
            command = python("bench.bare_loop", "--model", str(weights.folder), "--loop", loop)
            command += ["--prompt", lasting(1, round)[0], "--n-predict", str(streams.n_tokens(self.quick))]
            command += ["--streams", *map(str, streams.rows)]
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rates = json.loads(result.stdout.splitlines()[-1])
            return {rate_label(int(n)): rate for n, rate in rates.items()}

        return measure


def recorded(contestant: Contestant, workload: str, weights: Weights, round: int) -> Record:
    """Nothing that fails here keeps the others from being played."""
    meter = OthersMeter()
    try:
        return Record(contestant(workload, weights, round), others=meter.cores())
    except Exception as error:
        return Record(error=f"{type(error).__name__}: {error}", others=meter.cores())


def play_rounds(
    results: Results, workload: str, weights: Weights, players: dict[str, Contestant], runs: int, quick: bool
) -> None:
    """Round by round, each contestant alone; what is known already is not played again."""
    played = results.of(workload, {"commit": commit(), "quick": quick})
    for number in range(runs):
        for name in played.missing(number, list(players)):
            record = recorded(players[name], workload, weights, number)
            played.rounds[number][name] = record
            results.save()
            told = ", ".join(f"{label} {shown_number(n)}" for label, n in (record.figures or {}).items())
            print(f"{workload}, round {number + 1}, {name}: {told or record.error}", flush=True)


def may_play(name: str, workload: Workload) -> bool:
    return isinstance(workload.play, Streams) or name not in BARE


def chosen(text: str | None, known: Iterable[str]) -> list[str]:
    """All that is known, or the names in ``text``."""
    known = list(known)
    wanted = text.split(",") if text else known
    if unknown := [name for name in wanted if name not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2's GGUF file")
    parser.add_argument("--llama-server", type=Path, help="its binary; without it it does not take part")
    parser.add_argument("--only", help=f"workloads with commas between: {', '.join(WORKLOADS)}")
    parser.add_argument("--contestants", help="those that take part, with commas between; without it all")
    parser.add_argument("--runs", type=int, default=5, help="rounds of each workload; 0: only the tables")
    parser.add_argument("--quick", action="store_true", help="an eighth of the sizes: does everything work?")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="for results, models and logs")
    parser.add_argument("--plot", type=Path, help="a PNG file of the ratios (needs matplotlib)")
    args = parser.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    stage = Stage(args.out, args.quick)
    servers = SERVERS | ({"llama-server": llama_server(args.llama_server)} if args.llama_server else {})
    players = {name: stage.server(name, command) for name, command in servers.items()}
    players |= {name: stage.bare_loop(loop) for name, loop in BARE.items()}
    taking_part = chosen(args.contestants, players)
    results = Results(args.out / ("quick.json" if args.quick else "results.json"))
    results.about = about_machine()
    for name in chosen(args.only, WORKLOADS) if args.runs else ():
        workload = WORKLOADS[name]
        weights = prepared(workload.model, args.model, args.out)
        able = {who: players[who] for who in taking_part if may_play(who, workload)}
        play_rounds(results, name, weights, able, args.runs, args.quick)
    print(f"\n{table(results)}\n\n{targets_table(results)}")
    for failure in failures(results):
        print(f"failed: {failure}")
    if args.plot:
        from bench.plot import plot

        plot(results, args.plot)


if __name__ == "__main__":
    main()
