"""What ends the command before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlxserver.__main__
from mlxserver.__main__ import check_cache_disk, check_grammar
from mlxserver.kv.disk.folder import Folder
from mlxserver.options import Exit, parse_command_line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--grammar", "root ::= x"], "error: the supplied grammar cannot be used: undefined rule 'x'\n"),
        (
            ["-j", '{"type": "no"}'],
            "error: the supplied JSON schema cannot be used: JSON schema conversion failed:\n"
            'Unrecognized schema: {"type":"no"}\n',
        ),
    ],
)
def test_a_default_that_no_request_could_follow_ends_it(argv: list[str], message: str) -> None:
    with pytest.raises(Exit) as end:
        check_grammar(parse_command_line(["-m", "x.gguf", *argv], {}))
    assert (end.value.code, end.value.stderr) == (1, message)


@pytest.mark.parametrize(
    "argv", [[], ["--grammar", 'root ::= <any token> "a"'], ["-j", "{}"], ["--grammar", "%llguidance {}\n"]]
)
def test_what_may_be_of_use_passes(argv: list[str]) -> None:
    check_grammar(parse_command_line(["-m", "x.gguf", *argv], {}))


def refusal(*argv: str) -> str:
    with pytest.raises(Exit) as end:
        check_cache_disk(parse_command_line(["-m", "x.gguf", *argv], {}))
    assert end.value.code == 1
    return end.value.stderr


def test_a_folder_of_the_disk_cache_that_cannot_be_used_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    begin = "error: --cache-disk cannot be used: "
    assert refusal("--cache-disk", str(file)).startswith(begin + f"the folder {file} cannot be used")
    good = str(tmp_path / "disk")
    needs = begin + "it needs --cache-ram: what is read goes there\n"
    assert refusal("--cache-disk", good, "--cache-ram", "0") == needs
    other = Folder(tmp_path / "disk")
    assert "in use by another server" in refusal("--cache-disk", good)
    other.close()
    check_cache_disk(parse_command_line(["-m", "x.gguf", "--cache-disk", good], {}))
    monkeypatch.setattr(mlxserver.__main__, "LEAST_FREE", 2**80)
    assert refusal("--cache-disk", good).startswith(begin + f"there is no room in {good} (")
    (tmp_path / "disk" / "97ff8a35544dcf40").mkdir()  # what is there may be what fills the disk
    check_cache_disk(parse_command_line(["-m", "x.gguf", "--cache-disk", good], {}))
