"""Looks the installed packages up among known vulnerabilities, with pip-audit.

Exit code 1 for a known vulnerability only: without network, or behind a mirror that tells none, it says what
could not be looked up, and goes on.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

SECONDS = 180


def verdict(text: str, complaint: str) -> tuple[int, str]:
    """Exit code and what to say, of pip-audit's JSON and its last words."""
    try:
        packages: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = complaint.strip().splitlines() or ["it said nothing"]
        return 0, f"audit: no package was looked up: {lines[-1][:200]}"
    found = [_line(package, flaw) for package in packages for flaw in package.get("vulns", ())]
    n_known = sum("skip_reason" not in package for package in packages)
    summary = f"audit: {n_known} of {len(packages)} packages were looked up"
    if not n_known:
        summary += "; the package index tells no vulnerabilities"
    return (1 if found else 0), "\n".join([summary, *found])


def _line(package: dict[str, Any], flaw: dict[str, Any]) -> str:
    mended = ", ".join(flaw["fix_versions"]) or "no version yet"
    return f"{package['name']} {package['version']}: {flaw['id']} (mended in {mended})"


def main() -> int:
    if importlib.util.find_spec("pip_audit") is None:
        print("audit: pip-audit is not installed")
        return 0
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--timeout", "10", "--skip-editable"], capture_output=True, text=True, timeout=SECONDS
        )
        code, said = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        code, said = 0, f"audit: no answer within {SECONDS} s"
    print(said)
    return code


if __name__ == "__main__":
    sys.exit(main())
