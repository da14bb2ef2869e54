"""No option is ignored: each is honoured, warned of, or refused."""

from __future__ import annotations

import pytest

from mlxserver.options import Exit, parse_command_line
from mlxserver.options.table import Row, all_rows, rows_by_name


def refused(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(Exit) as end:
        parse_command_line(argv, environ)
    assert end.value.code == 1
    return [line for line in end.value.stderr.splitlines() if line.startswith("error: ")]


def notices(*argv: str, **environ: str) -> list[str]:
    return [notice.text for notice in parse_command_line(argv, environ).notices]


VALUES = {
    "float": "0.5",
    "unsigned": "3",
    "layers": "7",
    "floats": "1,2",
    "sizes": "1,2",
    "cpu_mask": "ff",
    "cpu_range": "0-1",
    "scaled": "a:2",
    "inverse": "2",
    "json": "{}",
    "spec_types": "ngram-mod",
    "switch_word": "off",
    "str": "x",
    "csv_scale_one": "absent.gguf",
    "csv": "x",
}


def example(row: Row) -> list[str] | None:
    """A use of the option with another value than its default; None where that needs a file."""
    if row.form in ("flag", "switch"):
        return [row.negated[0] if row.default and row.negated else row.spellings[0]]
    if row.form == "pair":
        return [row.spellings[0], "1", "2"]
    if row.form == "int":
        return [row.spellings[0], "3" if row.default != 3 else "2"]
    if row.type == "choice":
        return [row.spellings[0], next(choice for choice in row.choices if choice not in (row.default, ""))]
    return [row.spellings[0], VALUES[row.type]] if row.type in VALUES else None


def rows(state: str) -> list[Row]:
    return [row for row in all_rows() if row.state == state and not row.removed and example(row)]


@pytest.mark.parametrize("row", rows("deferred"), ids=lambda row: row.name)
def test_deferred_options_are_refused(row: Row) -> None:
    argv = example(row)
    assert argv
    assert refused(*argv) == [f"error: not yet implemented: {argv[0]} ({row.reason})"]


@pytest.mark.parametrize("row", rows("hint"), ids=lambda row: row.name)
def test_hints_are_named_in_one_line(row: Row) -> None:
    argv = example(row)
    assert argv
    lines = [line for line in notices(*argv) if not line.startswith("DEPRECATED")]
    value = getattr(parse_command_line(argv, {}), row.value_name)
    expected = [] if value in row.accepted_values else [f"{argv[0]} has no effect: {row.reason}"]
    assert lines == expected


def test_refused_options_name_the_missing_operation() -> None:
    assert refused("--rpc", "h:1") == ["error: --rpc is refused: MLX has no remote tensor backend"]


def test_deferred_values_of_other_options() -> None:
    reason = rows_by_name()["device"].reason
    assert refused("-dev", "none") == [f"error: not yet implemented: -dev none ({reason})"]


def test_refused_values_of_honoured_options() -> None:
    reason = "its codebook is not linear, and MLX quantises linearly"
    for spelling in ("-ctk", "--cache-type-v"):
        assert refused(spelling, "iq4_nl") == [f"error: {spelling} iq4_nl is refused: {reason}"]
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"):
        options = parse_command_line(["-ctk", kind, "-ctv", kind], {})
        assert (options.cache_type_k, options.cache_type_v) == (kind, kind)


@pytest.mark.parametrize(
    "argv",
    [
        ["--cache-ram", "0"],
        ["--cache-reuse", "0"],
        ["--cache-reuse", "8", "--cache-reuse", "0"],
        ["--no-cache-idle-slots"],
        ["--ctx-checkpoints", "0"],
        ["--no-context-shift"],
        ["--no-mmproj"],
        ["--no-ui"],
        ["--no-agent"],
        ["--spec-type", "none"],
        ["--reasoning-budget", "-1"],
        ["--sleep-idle-seconds", "-1"],
    ],
)
def test_values_that_ask_for_nothing_pass_in_silence(argv: list[str]) -> None:
    assert [line for line in notices(*argv) if not line.startswith("DEPRECATED")] == []


def test_all_refusals_come_at_once() -> None:
    lines = refused("--control-vector", "a", "--models-dir", "x", "-t", "4")
    assert [line.split()[4] for line in lines] == ["--control-vector", "--models-dir"]


def test_the_source_is_named_where_it_is_no_spelling() -> None:
    assert refused(LLAMA_ARG_MODELS_DIR="x") == [
        "error: not yet implemented: --models-dir (from LLAMA_ARG_MODELS_DIR) (serving several models)"
    ]
    assert notices(LLAMA_ARG_THREADS="4")[0].startswith("--threads (from LLAMA_ARG_THREADS) has no effect: ")


def test_bundles_are_judged_by_what_they_set() -> None:
    options = parse_command_line(["--gpt-oss-20b-default"], {})
    assert (options.port, options.parallel, options.ctx_size, options.top_k) == (8013, 2, 262144, 0)
    assert (options.hf_repo, options.hf_file) == ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf")
    assert not options.kv_unified and not options.given("temp")
    assert parse_command_line(["--fim-qwen-7b-default"], {}).cache_reuse == 256
    assert parse_command_line(["--embd-gemma-default"], {}).embedding
    assert "--spec-draft-hf" in " ".join(refused("--fim-qwen-14b-spec"))
    assert "--spec-type (from --spec-default)" in refused("--spec-default")[0]
    assert "--tools (from --agent)" in refused("--agent")[0]
    assert parse_command_line(["--fim-qwen-3b-default", "--cache-reuse", "0"], {}).batch_size == 1024
