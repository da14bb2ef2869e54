from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.options import Exit, Options, inifile, parse_command_line
from mlxserver.options.values import BadValue


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's config file; the system's lies beside it."""
    monkeypatch.setattr(inifile, "SYSTEM_FILE", tmp_path / "system.ini")
    path = tmp_path / "llama.cpp" / "config.ini"
    path.parent.mkdir()
    return path


def parse(config: Path, *argv: str, **environ: str) -> Options:
    return parse_command_line(argv, {"XDG_CONFIG_HOME": str(config.parents[1]), **environ})


def refused(config: Path) -> str:
    with pytest.raises(Exit) as end:
        parse(config)
    assert end.value.code == 1
    return end.value.stderr


def test_precedence(config: Path) -> None:
    system = config.parents[1] / "system.ini"
    system.write_text("c = 1\nport = 1\nkeep = 1\n")
    config.write_text("[*]\nctx-size = 2\nport = 3\nn = 4\n[default]\nport = 5 ; mine\n[other]\nport = 9\n")
    options = parse(config)
    assert (options.ctx_size, options.port, options.keep, options.n_predict) == (2, 5, 1, 4)
    assert [notice.text for notice in options.notices] == [
        f"using config file: {system}",
        f"using config file: {config}",
    ]
    assert parse(config, LLAMA_ARG_PORT="6").port == 6
    assert parse(config, "--port", "7", LLAMA_ARG_PORT="6").port == 7


def test_keys(config: Path) -> None:
    config.write_text(
        "# comment\n\n  ; comment\nmetrics = false\nno-jinja = true\nLLAMA_ARG_TOP_K=3\n"
        "LLAMA_ARG_NO_CACHE_PROMPT = 1\nslots = off\nversion = 1\nalias = a b#c\r\n"
    )
    options = parse(config)
    assert options.metrics, "a plain flag is on whatever its value"
    assert (options.jinja, options.top_k, options.cache_prompt, options.slots) == (False, 3, False, False)
    assert options.alias == ("a b",)


def test_unknown_keys_cost_a_warning(config: Path) -> None:
    config.write_text("prompt = hi\n")
    notice = parse(config).notices[1]
    assert notice.level == "warning"
    assert notice.text == f"ignoring option 'prompt' from {config}: not supported by this program"


@pytest.mark.parametrize("line", ["no equals", " indented = 1", "1key = 1", "[open", "[a] b", "[]"])
def test_one_bad_line_spoils_the_file(config: Path, line: str) -> None:
    config.write_text(f"port = 1\n{line}\n")
    assert refused(config) == f"failed to parse server config file: {config}\n"


def test_bad_values_name_file_and_key(config: Path) -> None:
    config.write_text("c = many\n")
    assert refused(config) == f"error in config file {config}: c: stoi\n"
    config.write_text("control-vector-layer-range = 1 2\n")
    assert "two values" in refused(config)


def test_a_repeated_section_starts_afresh() -> None:
    sections = inifile.parse_ini("a = 1\n[default]\nb = 2\n[x]\nc=3", Path("f"))
    assert sections == {"default": {"b": "2"}, "x": {"c": "3"}}


def test_unreadable_file(config: Path) -> None:
    config.mkdir()
    assert "failed to open file" in refused(config)


def test_where_the_files_are() -> None:
    assert inifile.config_files({"HOME": "/h"})[1] == Path("/h/.config/llama.cpp/config.ini")
    assert inifile.config_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x"})[1] == Path("/x/llama.cpp/config.ini")
    assert inifile.config_files({}) == [inifile.SYSTEM_FILE]


def test_bad_line_is_a_bad_value() -> None:
    with pytest.raises(BadValue):
        inifile.parse_ini("?", Path("f"))
