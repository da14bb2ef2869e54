"""The audit of dependencies fails on a known vulnerability, and on nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "audit.py"


def verdict(text: str, complaint: str = "") -> tuple[int, str]:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    code, said = module.verdict(text, complaint)
    return code, said


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "description": ""}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (1)"}


def test_a_vulnerability_fails() -> None:
    code, said = verdict(report(GOOD, BAD, UNKNOWN))
    assert (code, said) == (1, "audit: 2 of 3 packages were looked up\nb 2: PYSEC-1 (mended in 3)")


def test_none_passes() -> None:
    assert verdict(report(GOOD, UNKNOWN)) == (0, "audit: 1 of 2 packages were looked up")


def test_an_index_that_tells_nothing_passes_and_is_told() -> None:
    code, said = verdict(report(UNKNOWN))
    assert (code, said.endswith("the package index tells no vulnerabilities")) == (0, True)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}"])
def test_no_network_passes_and_is_told(text: str) -> None:
    said = "audit: no package was looked up: Connection refused"
    assert verdict(text, "Traceback\nConnection refused\n") == (0, said)
