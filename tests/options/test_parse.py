"""The command line: tokens, errors, warnings and what repetition does."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.options import Exit, Options, parse_command_line
from mlxserver.options.table import Row, all_rows


def parse(*argv: str, **environ: str) -> Options:
    return parse_command_line(argv, environ)


def refused(*argv: str, **environ: str) -> str:
    """What the error output says; the process ends with 1."""
    with pytest.raises(Exit) as end:
        parse(*argv, **environ)
    assert (end.value.code, end.value.stdout) == (1, "")
    return end.value.stderr


def texts(options: Options) -> list[str]:
    return [notice.text for notice in options.notices]


def test_defaults() -> None:
    options = parse()
    assert (options.ctx_size, options.n_predict, options.batch_size, options.ubatch_size) == (
        0,
        -1,
        2048,
        512,
    )
    assert (options.host, options.port, options.timeout, options.sse_ping_interval) == (
        "127.0.0.1",
        8080,
        3600,
        30,
    )
    assert (options.parallel, options.kv_unified, options.cont_batching, options.cache_prompt) == (
        4,
        True,
        True,
        True,
    )
    assert (options.temp, options.top_k, options.seed) == (0.800000011920929, 40, 4294967295)
    assert (options.jinja, options.reasoning, options.reasoning_format) == (True, "auto", "deepseek")
    assert (options.alias, options.api_key, options.logit_bias, options.chat_template_kwargs) == (
        (),
        (),
        (),
        {},
    )
    assert options.notices == ()


def test_underscores_count_as_dashes_in_long_spellings_only() -> None:
    assert parse("--ctx_size", "7").ctx_size == 7
    assert refused("--foo_bar") == "error: invalid argument: --foo-bar\n"
    assert refused("-n_p") == "error: invalid argument: -n_p\n"


@pytest.mark.parametrize(
    "token", ["word", "--ctx-size=5", "-cb1", "--CTX-SIZE", "-p", "--verbose-prompt", ""]
)
def test_unknown_arguments(token: str) -> None:
    assert refused(token) == f"error: invalid argument: {token}\n"


def test_a_value_is_taken_whatever_it_looks_like() -> None:
    assert parse("-n", "-1").n_predict == -1
    assert parse("--alias", "--metrics").alias == ("--metrics",)


def test_a_flag_takes_no_value() -> None:
    assert refused("--slots", "true") == "error: invalid argument: true\n"


USAGE = "\n\nto show complete usage, run with -h\n"


def test_error_with_usage() -> None:
    text = refused("-c", "many")
    assert text.startswith('error while handling argument "-c": stoi\n\nusage:\n-c,    --ctx-size N     ')
    assert text.endswith("(env: LLAMA_ARG_CTX_SIZE)\n" + USAGE)


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["-c"], "expected value for argument"),
        (["--control-vector-layer-range", "1"], "expected value for argument"),
        (["--temp", "warm"], "stof"),
        (["--seed", "x"], "stoul"),
        (["-np", "0"], "error: invalid value for n_parallel\n"),
        (["--prio", "4"], "invalid value"),
        (["--prio-batch", "-1"], "invalid value"),
        (["-cms", "-1"], "checkpoint-min-step must be non-negative"),
        (["--repeat-last-n", "-1"], "error: invalid repeat-last-n = -1\n"),
        (["--dry-penalty-last-n", "-2"], "error: invalid dry-penalty-last-n = -2\n"),
        (["--repeat-penalty", "0"], "error: repeat-penalty must be finite and greater than 0\n"),
        (["--repeat-penalty", "inf"], "error: repeat-penalty must be finite and greater than 0\n"),
        (["--presence-penalty", "nan"], "error: presence-penalty must be finite\n"),
        (["--frequency-penalty", "-inf"], "error: frequency-penalty must be finite\n"),
        (["--sleep-idle-seconds", "0"], "invalid value: cannot be 0 or less than -1"),
        (["--sleep-idle-seconds", "-2"], "invalid value: cannot be 0 or less than -1"),
        (["--reasoning-budget", "-5"], "invalid value"),
        (["--reasoning-format", "xml"], "Unknown reasoning format: xml"),
        (["--reasoning", "maybe"], "error: unknown value for --reasoning: 'maybe'\n"),
        (["-fa", "yes"], "error: unknown value for --flash-attn: 'yes'\n"),
        (["-fit", "auto"], "error: unknown value for --fit: 'auto'\n"),
        (["--log-colors", "ON"], "error: unknown value for --log-colors: 'ON'\n"),
        (["--slot-save-path", "/nowhere"], "not a directory: /nowhere"),
        (["--media-path", "/nowhere"], "not a directory: /nowhere"),
        (["--pooling", "max"], "invalid value"),
        (["-ctk", "q9_9"], "Unsupported cache type: q9_9"),
        (["--cache-type-v", "F16"], "Unsupported cache type: F16"),
        (["--rope-scaling", "x"], "invalid value"),
        (["--load-mode", "x"], "invalid value"),
        (["--numa", "x"], "invalid value"),
        (["-ngl", "some"], "stoi"),
        (["--n-cpu-moe", "-1"], "invalid value"),
        (["--spec-ngram-mod-n-match", "0"], "ngram size N must be between 1 and 1024 inclusive"),
        (["--spec-ngram-simple-size-m", "1025"], "ngram size M must be between 1 and 1024 inclusive"),
        (["--spec-ngram-mod-n-min", "-1"], "ngram n-min must be between 0 and 1024 inclusive"),
        (["--spec-ngram-map-k-min-hits", "0"], "ngram min hits must be at least 1"),
        (["--spec-type", "ngram-mod,fast"], "unknown speculative type: fast"),
        (["--lora-scaled", "a:b:c"], "lora-scaled format: FNAME:SCALE"),
        (["--control-vector-scaled", "a"], "control-vector-scaled format: FNAME:SCALE"),
        (["--logit-bias", "5"], "invalid input format"),
        (["--logit-bias", "0x5+1"], "invalid input format"),
        (["--override-kv", "key=int5"], "error: Invalid type for KV override: key=int5\n"),
        (["--override-kv", "key=bool:1"], "error: Invalid type for KV override: key=bool:1\n"),
        (["--chat-template-file", "/nowhere"], "error: failed to open file '/nowhere'\n"),
        (["--api-key-file", "/"], "error: failed to open file '/'\n"),
        (["--chat-template-kwargs", "nope"], "parse error at line 1, column 1: Expecting value"),
        (["--chat-template-kwargs", "[]"], "the template kwargs are not a JSON object"),
        (["--cpu-mask", "xyz"], "invalid cpumask"),
        (["--cpu-range", "3"], "invalid range"),
        (["--dtype", "int8"], "Unknown compute dtype: int8"),
    ],
)
def test_reasons(argv: list[str], reason: str) -> None:
    text = refused(*argv)
    assert text.startswith(f'error while handling argument "{argv[0]}": {reason}\n\nusage:\n')
    assert text.endswith(USAGE)


@pytest.mark.parametrize("row", [row for row in all_rows() if row.removed], ids=lambda row: row.name)
def test_removed_options(row: Row) -> None:
    for spelling in row.spellings:
        expected = (
            f'error while handling argument "{spelling}": the argument has been removed. {row.removed}\n'
        )
        assert refused(spelling, "3").startswith(expected)
        assert refused(spelling, "x").startswith(f'error while handling argument "{spelling}": stoi\n')
        assert refused(spelling).startswith(f'error while handling argument "{spelling}": expected value')


SWITCHES = [row for row in all_rows() if row.form == "switch" and not row.sets]


@pytest.mark.parametrize("row", SWITCHES, ids=lambda row: row.name)
def test_every_negated_spelling_switches_off_and_the_last_one_wins(row: Row) -> None:
    accepts_any = row.state in ("honoured", "hint")
    for negated in row.negated:
        for spellings, value in (((row.spellings[0], negated), False), ((negated, row.spellings[0]), True)):
            if accepts_any or value in (row.default, *row.accepted_values):
                assert getattr(parse("-np", "1", *spellings), row.name) is value
            else:
                assert f"not yet implemented: {spellings[-1]} " in refused(*spellings)


def test_repeating_a_spelling_warns_and_the_last_one_wins() -> None:
    options = parse("-c", "1", "-c", "2", "--ctx-size", "3")
    assert options.ctx_size == 3
    assert texts(options) == [
        "DEPRECATED: argument '-c' specified multiple times, "
        "use comma-separated values instead (only last value will be used)"
    ]


def test_a_switch_and_its_negation_are_no_repetition() -> None:
    assert parse("--slots", "--no-slots").notices == ()


def test_spec_type_may_be_repeated() -> None:
    assert parse("--spec-type", "none", "--spec-type", "none").notices == ()


def test_load_mode_beside_its_old_spellings() -> None:
    options = parse("--mlock", "-lm", "mmap")
    assert options.load_mode == "mmap"
    assert texts(options)[0] == "DEPRECATED: --mlock is deprecated. use --load-mode mlock instead"
    assert texts(options)[1].startswith("DEPRECATED: `--load-mode` and `--mlock`/")
    assert parse("--no-mmap").load_mode == "none" and parse("-dio").load_mode == "dio"


def test_accumulating_options(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(b"k1\n\n#no\n k2 \n")
    options = parse(
        "--api-key", "a,,b", "--api-key-file", str(keys), "--api-key", '"c,d"', LLAMA_API_KEY="env"
    )
    assert options.api_key == ("env", "a", "b", "k1", " k2 ", "c,d")
    assert parse("-a", "z, a,", "--alias", "m").alias == ("a", "m", "z")
    assert parse("--tags", "b,a").tags == ("a", "b")
    assert parse("-r", "x", "--reverse-prompt", r"\n").reverse_prompt == ("x", "\n")
    assert parse("-r", r"\n", "--no-escape").reverse_prompt == (r"\n",)
    assert parse("-l", "5+1", "-l", "6-inf", "--logit-bias", " 7 - 2.5x").logit_bias == (
        (5, 1.0),
        (6, -float("inf")),
        (7, -2.5),
    )
    assert parse("--override-kv", "a=int:1,b=str:x").override_kv == ("a=int:1", "b=str:x")


def test_dry_sequence_breakers() -> None:
    assert parse().dry_sequence_breaker == ("\n", ":", '"', "*")
    assert parse("--dry-sequence-breaker", r"\t", "--dry-sequence-breaker", "b").dry_sequence_breaker == (
        "\t",
        "b",
    )
    assert parse("--dry-sequence-breaker", "a", "--dry-sequence-breaker", "none").dry_sequence_breaker == ()
    assert parse("--dry-sequence-breaker", "none", "--dry-sequence-breaker", "a").dry_sequence_breaker == (
        "a",
    )


def test_samplers() -> None:
    options = parse("--samplers", "Top-K;nucleus;bogus;TEMP;typ")
    assert options.samplers == ("top_k", "top_p", "temperature", "typ_p")
    assert texts(options) == ["unable to match sampler by name 'bogus'"]
    assert parse("--sampling-seq", "kztx").samplers == ("top_k", "temperature", "xtc")
    assert not parse("--sampling-seq", "k").given("samplers")


def test_numbers() -> None:
    options = parse("--temp", "-3", "--seed", "-1", "--dry-base", "0.5", "--top-p", "0.5junk")
    assert (options.temp, options.seed, options.dry_base, options.top_p) == (0.0, 4294967295, 1.75, 0.5)
    assert parse("-ub", "4096", "-b", "64").ubatch_size == 64
    assert parse("-ngl", "all").gpu_layers == -2


def test_files_are_read(tmp_path: Path) -> None:
    template, settings = tmp_path / "t.jinja", tmp_path / "s.json"
    template.write_bytes("{{ 'é' }}\r\n".encode())
    settings.write_text('{"theme": "dark"}')
    assert parse("--chat-template-file", str(template)).chat_template == "{{ 'é' }}\r\n"
    assert parse("--ui-config-file", str(settings)).ui_config == {"theme": "dark"}
    template.write_bytes(b"\xff")
    assert "is not UTF-8" in refused("--chat-template-file", str(template))


def test_what_was_given() -> None:
    options = parse("--temp", "1", LLAMA_ARG_TOP_K="3")
    assert options.given("temp") and options.given("top_k") and not options.given("top_p")


def test_unknown_names_and_changes_fail() -> None:
    options = parse()
    with pytest.raises(AttributeError, match="no option 'ctx'"):
        _ = options.ctx
    with pytest.raises(AttributeError):
        options.port = 1
