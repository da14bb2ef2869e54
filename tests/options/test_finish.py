from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.options import Exit, Options, parse_command_line
from mlxserver.options.builder import Builder
from mlxserver.options.finish import finish


def parse(*argv: str) -> Options:
    return parse_command_line(argv, {})


@pytest.mark.parametrize(
    "argv, slots, unified",
    [
        ([], 4, True),
        (["-np", "-1", "--no-kv-unified"], 4, True),
        (["-np", "2"], 2, False),
        (["-np", "2", "-kvu"], 2, True),
    ],
)
def test_slots(argv: list[str], slots: int, unified: bool) -> None:
    options = parse(*argv)
    assert (options.parallel, options.kv_unified) == (slots, unified)


@pytest.mark.parametrize(
    "argv, names",
    [
        (["-m", "dir/model.gguf"], ("dir/model.gguf",)),
        (["-m", "x", "-hf", "user/repo:Q4_0"], ("user/repo:Q4_0",)),
        (["-m", "x", "-a", "b,a"], ("a", "b")),
    ],
)
def test_the_source_names_the_model(argv: list[str], names: tuple[str, ...]) -> None:
    assert parse(*argv).alias == names


@pytest.mark.parametrize("batch, ubatch, expected", [(64, 512, 64), (64, 16, 16), (64, 0, 64)])
def test_physical_batches_fit_into_logical_ones(batch: int, ubatch: int, expected: int) -> None:
    assert parse("-b", str(batch), "-ub", str(ubatch)).ubatch_size == expected


@pytest.mark.parametrize(
    "argv, kwargs",
    [
        (["--reasoning", "1"], {"enable_thinking": True}),
        (["--reasoning", "off"], {"enable_thinking": False}),
        (["--reasoning", "on", "--reasoning", "auto"], {"enable_thinking": True}),
        (["--reasoning-effort", "high"], {"reasoning_effort": "high"}),
        (["--reasoning-effort", "high", "--reasoning-effort", "default"], {}),
        (["--reasoning-preserve"], {"preserve_reasoning": True}),
        (["--no-reasoning-preserve"], {"preserve_reasoning": False}),
        (
            ["--chat-template-kwargs", '{"a": [1], "b": 2}', "--chat-template-kwargs", '{"b": null}'],
            {"a": [1], "b": None},
        ),
        (
            ["--reasoning", "on", "--chat-template-kwargs", '{"enable_thinking": false}'],
            {"enable_thinking": False},
        ),
    ],
)
def test_template_kwargs(argv: list[str], kwargs: dict[str, object]) -> None:
    assert parse(*argv).chat_template_kwargs == kwargs


def test_kwargs_of_one_run_do_not_reach_the_next() -> None:
    parse("--chat-template-kwargs", '{"a": 1}', "--reasoning", "on")
    assert parse().chat_template_kwargs == {}


def test_an_empty_key_is_told(tmp_path: Path) -> None:
    text = "the API key is empty: everybody is let in"
    assert [notice.text for notice in parse("--api-key", "").notices] == [text]
    assert parse("--api-key", ",k").notices == ()
    keys = tmp_path / "keys"
    keys.write_text("# none\n\n")
    with pytest.raises(Exit) as end:
        parse("--api-key-file", str(keys))
    assert (end.value.code, "no keys in file" in end.value.stderr) == (1, True)
    keys.write_text("# one\nk\n")
    assert parse("--api-key-file", str(keys)).api_key == ("k",)


def test_half_of_tls_is_told() -> None:
    assert [notice.text for notice in parse("--ssl-key-file", "k").notices] == [
        "TLS is off: it needs both --ssl-key-file and --ssl-cert-file"
    ]
    assert parse("--ssl-key-file", "k", "--ssl-cert-file", "c").notices == ()


def finished(**values: object) -> Builder:
    """For options that are not honoured yet, so that no command line gets this far."""
    builder = Builder()
    builder.values.update(values)
    finish(builder)
    return builder


def test_tools_keep_other_origins_out() -> None:
    builder = finished(tools=("all",))
    assert builder.values["cors_origins"] == "localhost"
    assert builder.notices[0].text.startswith("server tools or MCP servers are enabled")


def test_embeddings_take_one_physical_batch() -> None:
    builder = finished(embedding=True)
    assert builder.values["batch_size"] == builder.values["ubatch_size"] == 512
    assert len(builder.notices) == 2


def test_details_of_a_disk_cache_without_one_are_told_of() -> None:
    lines = [notice.text for notice in parse("--cache-disk-size", "5").notices]
    assert lines == ["--cache-disk-size: no effect without --cache-disk"]
    assert parse("--cache-disk-size", "5", "--cache-disk", "x").notices == ()
