"""What ends the command before a model is loaded."""

from __future__ import annotations

import pytest

from mlxserver.__main__ import check_grammar
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
