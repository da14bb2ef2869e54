from __future__ import annotations

import pytest

from mlxserver.options import Exit, Options, parse_command_line
from mlxserver.options.table import Row, all_rows


def parse(*argv: str, **environ: str) -> Options:
    return parse_command_line(argv, environ)


def refused(**environ: str) -> str:
    with pytest.raises(Exit) as end:
        parse(**environ)
    assert (end.value.code, end.value.stdout) == (1, "")
    return end.value.stderr


def test_the_environment_is_over_the_defaults_and_below_the_command_line() -> None:
    assert parse(LLAMA_ARG_CTX_SIZE="512abc").ctx_size == 512
    options = parse("-c", "7", LLAMA_ARG_CTX_SIZE="512")
    assert options.ctx_size == 7
    assert [(notice.level, notice.text) for notice in options.notices] == [
        (
            "plain",
            "warn: LLAMA_ARG_CTX_SIZE environment variable is set, "
            "but will be overwritten by command line argument -c",
        )
    ]


def test_the_warning_comes_once_for_each_use() -> None:
    options = parse("-c", "7", "--ctx-size", "8", LLAMA_ARG_CTX_SIZE="512")
    assert [notice.text.split()[-1] for notice in options.notices] == ["-c", "--ctx-size"]


def test_irregular_names() -> None:
    options = parse(HF_TOKEN="t", LLAMA_API_KEY="k", LLAMA_ARG_THINK="none", LLAMA_ARG_STATIC_PATH="/p")
    assert (options.hf_token, options.api_key, options.reasoning_format) == ("t", ("k",), "none")
    assert options.path == "/p"
    assert parse(LLAMA_ARG_ENDPOINT_METRICS="1", LLAMA_ARG_ENDPOINT_SLOTS="0").metrics
    assert not parse(LLAMA_ARG_ENDPOINT_SLOTS="0").slots


@pytest.mark.parametrize(
    "word, value", [("1", True), ("on", True), ("0", False), ("yes", False), ("", False)]
)
def test_a_plain_flag_ignores_all_but_true_words(word: str, value: bool) -> None:
    options = parse(LLAMA_ARG_ENDPOINT_METRICS=word)
    assert options.metrics is value and options.given("metrics") is value


@pytest.mark.parametrize("word", ["yes", "", "TRUE", "2"])
def test_a_switch_needs_a_boolean_word(word: str) -> None:
    expected = 'error while handling environment variable "LLAMA_ARG_JINJA": invalid boolean value\n\n\n'
    assert refused(LLAMA_ARG_JINJA=word) == expected


@pytest.mark.parametrize("word", ["1", "", "false", "nonsense"])
def test_the_negated_name_is_off_by_its_presence_and_goes_first(word: str) -> None:
    assert parse(LLAMA_ARG_NO_JINJA=word, LLAMA_ARG_JINJA="on").jinja is False


def test_the_warning_names_the_variable_of_the_option() -> None:
    options = parse("--jinja", LLAMA_ARG_NO_JINJA="1")
    assert options.jinja
    assert options.notices[0].text.startswith("warn: LLAMA_ARG_JINJA environment variable is set")


def test_errors_name_the_variable() -> None:
    head = 'error while handling environment variable "LLAMA_ARG_'
    assert refused(LLAMA_ARG_CTX_SIZE="many") == f'{head}CTX_SIZE": stoi\n\n\n'
    assert refused(LLAMA_ARG_CACHE_TYPE_K="q9") == f'{head}CACHE_TYPE_K": Unsupported cache type: q9\n\n\n'
    assert refused(LLAMA_ARG_DRAFT_MAX="3").startswith(
        f'{head}DRAFT_MAX": the argument has been removed. use'
    )
    assert refused(LLAMA_ARG_N_PARALLEL="0").startswith(f'{head}N_PARALLEL": error: invalid value for')


def test_an_empty_text_is_a_value() -> None:
    assert parse(LLAMA_ARG_HOST="").host == ""


def test_own_options_have_variables() -> None:
    assert parse(MLXSERVER_DTYPE="float32", MLXSERVER_WEIGHTS="keep").dtype == "float32"


SAMPLES = {"int": "1", "switch": "off", "flag": "1"}


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in all_rows()
        if row.env and row.state == "honoured" and row.form in SAMPLES and not row.sets
    ],
    ids=lambda row: row.name,
)
def test_every_variable_reaches_its_option(row: Row) -> None:
    options = parse(**{"LLAMA_ARG_N_PARALLEL": "1", str(row.env): SAMPLES[row.form]})
    assert options.given(row.name)
    assert getattr(options, row.value_name) == {"int": 1, "switch": False, "flag": True}[row.form]
