from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.options import docs
from mlxserver.options.table import all_rows

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_file_is_current() -> None:
    assert (ROOT / docs.FILE).read_text(encoding="utf-8") == docs.text()


def test_every_option_has_a_line_with_its_state() -> None:
    lines = [line for line in docs.text().splitlines() if line.startswith("| `-")]
    assert len(lines) == len(all_rows())
    for row in all_rows():
        assert any(f"`{row.long}`" in line and f"**{row.state}**" in line for line in lines)


def test_check_fails_on_a_stale_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "FILE", tmp_path / "options.md")
    assert docs.main(["--check"]) == 1
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    docs.FILE.write_text("old")
    assert docs.main(["--check"]) == 1
