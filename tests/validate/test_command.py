"""The command as it is typed: figures, files, exit codes; one line for what cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlxserver.models.rotary import Rotation
from mlxserver.validate.command import main
from tests.models import tiny, tiny_folder

SHORT = "-n 96 --chunks 5 --cuts 40 --batch 1,2 --n-decode 4 --kv-types q8_0".split()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    module = tiny.llama(head_dim=32, max_position_embeddings=512)
    return str(tiny_folder.write(tmp_path_factory.mktemp("llama"), module))


def test_table_json_and_picture(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "report.json", tmp_path / "picture.png"
    assert main(["-m", llama, *SHORT, "--json", str(files[0]), "--plot", str(files[1])]) == 0
    shown = capsys.readouterr().out
    assert "96 tokens of the text that comes with mlxserver" in shown and "more than 0.01 nats" in shown
    assert "every path holds what it promises" in shown
    report = json.loads(files[0].read_text())
    assert report["passed"] and report["bounds"] == {"gap": 0.01, "difference": 1e-3, "kl": 1.0}
    names = [row["path"] for row in report["paths"]]
    assert all(f"| {name} " in shown for name in names)
    assert {"prompt chunks of 5", "prefix hit at 40, stored", "batch of 2", "KV q8_0", "context shift"} <= {
        *names
    }
    row = report["paths"][names.index("prefix hit at 40, stored")]
    assert row["by_position"]["position"] == list(range(40, 96)) and row["n_disagree"] == 0
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_a_broken_path_ends_with_code_1(
    llama: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlxserver.models.rotary._unexplained", lambda *args: (0.0, 0.0))
    monkeypatch.setattr(Rotation, "moved", lambda self, x, start, to: x * 1.001)
    assert main(["-m", llama, *SHORT]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: chunk reuse, the same slot, chunk reuse, another slot" in shown


def test_a_bound_that_nothing_keeps(llama: str) -> None:
    assert main(["-m", llama, *SHORT, "--bound-kl", "0"]) == 1


def test_a_hybrid_says_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folder.write(tmp_path / "hybrid", tiny.qwen3_next())
    assert main(["-m", str(folder), *SHORT]) == 0
    shown = capsys.readouterr().out
    assert "not possible: ArraysCache cannot shift" in shown and "does not divide" in shown


def test_text_from_a_file(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("All ships are in, and the swans are asleep. " * 2)
    assert main(["-m", llama, *SHORT, "--text", str(text)]) == 0
    assert "88 tokens of" in capsys.readouterr().out


WRONG = [
    ([], "name one model, by -m or -hf"),
    (["-m", "x", "-hf", "y"], "name one model, by -m or -hf"),
    (["-m", "nowhere"], "nowhere"),
    (["-m", "{llama}", "--text", "nowhere"], "--text nowhere: No such file or directory"),
    (["-m", "{llama}", "--json", "no/where.json"], "--json no/where.json: no file can be written there"),
    (["-m", "{llama}", "--plot", "."], "--plot .: no file can be written there"),
    (["-m", "{llama}", "--n-tokens", "8"], "8 tokens are too few; at least 64 are needed"),
    (["-m", "{llama}", "--kv-types", "q8_0,iq4_nl"], "'iq4_nl' is none of f32"),
    (["-m", "{llama}", "--batch", "2,0"], "'0' is not a positive number"),
    (["-m", "{llama}", "--bound", "nan"], "'nan' is not a number from 0 on"),
    (["-m", "{llama}", "--bogus"], "unrecognized arguments: --bogus"),
    (["-m"], "expected one argument"),
]


@pytest.mark.parametrize("argv, line", WRONG)
def test_what_cannot_be_is_one_line(
    argv: list[str], line: str, llama: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(llama=llama) for word in argv]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and line in err and err.count("\n") == 1


def test_bytes_that_are_no_text(llama: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert main(["-m", llama, "--text", str(tmp_path / "binary")]) == 1
    assert "it is not UTF-8" in capsys.readouterr().err


def test_a_model_that_cannot_hold_the_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_folder.write(tmp_path / "narrow", tiny.qwen3())
    assert main(["-m", str(folder), "-ctk", "q8_0"]) == 1
    assert "does not divide" in capsys.readouterr().err


def test_without_matplotlib(
    llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlxserver.validate.plot.find_spec", lambda name: None)
    assert main(["-m", llama, "--plot", str(tmp_path / "x.png")]) == 1
    assert capsys.readouterr().err == "error: --plot needs matplotlib: pip install 'mlxserver[plot]'\n"


def test_the_first_word_names_the_command() -> None:
    command = [sys.executable, "-m", "mlxserver", "validate", "-m", "nowhere"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
