"""``python -m tests.fuzz.run TARGET|all --inputs N --seed S``: ends with the first input that goes wrong.

Input number I of a seed is the same in every run, so ``--first I --inputs 1`` shows it again.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS

SLOW = 1.0
"""Seconds of the processor's time that no input may take."""
HANG = 20


class Hang(BaseException):
    """An input took HANG seconds of the processor's time."""


def fuzz(name: str, n_inputs: int, seed: int, folder: Path, first: int = 0) -> float:
    """The longest time that an input took, in seconds. Raises what goes wrong, with the input's number."""
    worst = 0.0
    for number in range(first, first + n_inputs):
        rng = random.Random(f"{name} {seed} {number}")
        start = time.process_time()
        try:
            with time_limit():
                TARGETS[name](rng, folder)
        except BaseException as error:
            error.add_note(f"input {number} of {name}, seed {seed}")
            raise
        took = time.process_time() - start
        worst = max(worst, took)
        if took > SLOW:
            raise Hang(f"input {number} of {name}, seed {seed} took {took:.1f} s")
    return worst


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _end)
    signal.setitimer(signal.ITIMER_PROF, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _end(number: int, frame: Any) -> None:
    raise Hang


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        for name in TARGETS if given.target == "all" else [given.target]:
            start = time.monotonic()
            worst = fuzz(name, given.inputs, given.seed, Path(folder), given.first)
            seconds = time.monotonic() - start
            print(
                f"{name}: {given.inputs} inputs in {seconds:.0f} s, the slowest {worst * 1e3:.0f} ms",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
