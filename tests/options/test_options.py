"""Whatever stands on the command line: options come out, or an exit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxserver.options import Exit, Options, parse_command_line
from mlxserver.options.table import all_rows, spellings_of

WORDS = [
    "",
    "-1",
    "0",
    "1",
    "7x",
    "1e99",
    "nan",
    "inf",
    "on",
    "auto",
    "f16",
    "q8_0",
    "none",
    "{}",
    "[",
    "a,b",
    '"',
]
WORDS += [
    "5+1",
    "x:1",
    "k=int:5",
    "k=str:x",
    "/",
    "/nowhere",
    "top_k;x",
    "9" * 30,
    "é",
    "\udcff",
    "\n",
    "0-3",
    "1,2/3",
]
VARIABLES = [name for row in all_rows() for name in (row.env, row.negated_env) if name]

spellings = st.sampled_from([s for s in spellings_of(all_rows()) if s not in ("-cl", "--cache-list")])
words = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_characters="\0"), max_size=8))
command_lines = st.lists(st.one_of(spellings, words), max_size=8)
environments = st.dictionaries(st.sampled_from(VARIABLES), words, max_size=3)


@settings(max_examples=600, deadline=None)
@given(command_lines, environments)
def test_only_options_or_an_exit_come_out(argv: list[str], environ: dict[str, str]) -> None:
    try:
        options = parse_command_line(argv, environ)
    except Exit as end:
        assert end.code in (0, 1)
        assert end.stderr if end.code else end.stdout or end.stderr
    else:
        assert isinstance(options, Options) and options.parallel >= 1


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([row for row in all_rows() if row.form in ("int", "string")]), words)
def test_any_value_of_any_option(row: object, word: str) -> None:
    try:
        parse_command_line([row.spellings[-1], word], {})  # type: ignore[attr-defined]
    except Exit as end:
        assert end.code == 1 and end.stderr.endswith("\n")


def test_what_is_no_option_has_no_name() -> None:
    options = parse_command_line([], {})
    for name in ("_x", "ctx", "chat_template_file", "__deepcopy__"):
        with pytest.raises(AttributeError):
            getattr(options, name)
