"""Plays the conformance kit's cases and compares the outcome with expected_failures.txt.

Fails where a case fails that is not listed there, where a listed case passes, and where the server dies.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AREAS = tuple(
    f"{area}.*"
    for area in (
        "start",
        "ops",
        "sampling",
        "completion",
        "chat",
        "oai",
        "anthropic",
        "responses",
        "tools",
        "reasoning",
        "infill",
        "embeddings",
        "cache",
        "slots",
        "save",
        "shift",
        "lora",
    )
)
EXPECTED_FAILURES = Path(__file__).with_name("expected_failures.txt")
FAILED = re.compile(r"^FAIL (\S+) \[")
SUMMARY = re.compile(r"^\d+ passed, \d+ failed$")
DIED = re.compile(r"^\S+: the server died before ")


def read_expected(path: Path) -> dict[str, str]:
    """Case id -> reason."""
    expected = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            case, _, reason = line.partition(" ")
            assert reason.strip(), f"{path.name}: {case} has no reason"
            expected[case] = reason.strip()
    return expected


def list_cases(kit: Path) -> dict[str, str]:
    """Case id -> the profile of the server that it is played to."""
    command = [sys.executable, str(kit / "conformance.py"), "list"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {case: profile for profile, case in (line.split()[:2] for line in listing.splitlines())}


def shards(profiles: dict[str, str], jobs: int) -> list[list[str]]:
    """The cases in up to ``jobs`` parts of about one size; those of one profile share a server, in order."""
    of_profile: dict[str, list[str]] = {}
    for case, profile in profiles.items():
        of_profile.setdefault(profile, []).append(case)
    parts: list[list[str]] = [[] for _ in range(jobs)]
    for cases in sorted(of_profile.values(), key=len, reverse=True):
        min(parts, key=len).extend(cases)
    return [part for part in parts if part]


def play(
    kit: Path, server: str, model: Path, only: list[str], expected: Collection[str]
) -> tuple[set[str], int]:
    """The ids of the cases that failed, and how often the server died; differences go to the terminal."""
    command = [sys.executable, str(kit / "conformance.py"), "check", "--only", ",".join(only)]
    command += ["--server", server, "--model", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            failure = FAILED.match(line)
            is_expected = failure is not None and failure[1] in expected
            print("expected " * is_expected + line, end="", flush=True)
            lines.append(line)
    if process.returncode not in (0, 1) or not lines or not SUMMARY.match(lines[-1]):
        raise SystemExit("the conformance kit did not finish")
    failed = {match[1] for match in map(FAILED.match, lines) if match}
    return failed, sum(1 for line in lines if DIED.match(line))


def kit_is_absent(kit: Path) -> int:
    print(f"\n*** THE CONFORMANCE CASES WERE NOT RUN: no kit at {kit} ***", file=sys.stderr)
    print("Set CONFORMANCE to the folder of conformance.py.\n", file=sys.stderr)
    return 1 if os.environ.get("CI") else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kit", type=Path, required=True, help="the folder of conformance.py")
    parser.add_argument("--model", type=Path, required=True, help="the SmolLM2 GGUF file")
    parser.add_argument("--server", default=shlex.quote(str(Path(sys.executable).with_name("mlxserver"))))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="servers at a time")
    parser.add_argument("globs", nargs="*", default=AREAS, help="case ids (default: %(default)s)")
    args = parser.parse_args()
    if not (args.kit / "conformance.py").exists():
        return kit_is_absent(args.kit)

    profiles = list_cases(args.kit)
    chosen = {case: profiles[case] for case in profiles if any(fnmatch.fnmatch(case, g) for g in args.globs)}
    expected = read_expected(EXPECTED_FAILURES).keys() & set(chosen)
    start = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        played = pool.map(
            lambda part: play(args.kit, args.server, args.model, part, expected), shards(chosen, args.jobs)
        )
        outcomes = list(played)
    failed = set().union(*(outcome[0] for outcome in outcomes))
    deaths = sum(outcome[1] for outcome in outcomes)

    for case in sorted(expected - failed):
        print(f"PASSED, BUT LISTED in {EXPECTED_FAILURES.name}: {case}")
    for case in sorted(failed - expected):
        print(f"FAILED: {case}")
    bad = len(failed ^ expected) + deaths
    passed = len(chosen) - len(failed | expected)
    seconds = time.monotonic() - start
    print(f"{passed} passed, {len(failed & expected)} xfailed, {bad} failed in {seconds:.1f}s")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
