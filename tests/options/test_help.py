from __future__ import annotations

import subprocess

import pytest

from mlxserver.options import Exit, parse_command_line
from mlxserver.options.help import COLUMN, WIDTH, completion_text, entry, help_text, wrap
from mlxserver.options.table import all_rows, rows_by_name, spellings_of


def exit_of(*argv: str) -> Exit:
    with pytest.raises(Exit) as end:
        parse_command_line(argv, {})
    return end.value


def test_help_comes_after_everything_was_read() -> None:
    for spelling in ("-h", "--help", "--usage"):
        end = exit_of(spelling, "--lora", "x")
        assert (end.code, end.stdout, end.stderr) == (0, help_text(), "")
    assert exit_of("--help", "-c", "x").code == 1


def test_layout() -> None:
    text = help_text()
    headers = [line for line in text.splitlines() if line.startswith("-----")]
    assert headers == [
        f"----- {name} params -----"
        for name in ("common", "sampling", "speculative", "example-specific", "mlxserver")
    ]
    assert text.startswith("----- common params -----\n\n-h,    --help, --usage                  Show help")
    assert "\n\n\n----- sampling params -----\n\n--samplers" in text
    for row in all_rows():
        assert entry(row) in text


def test_entries() -> None:
    assert entry(rows_by_name()["metrics"]) == (
        "--metrics                               Enable GET /metrics\n"
        "                                        (env: LLAMA_ARG_ENDPOINT_METRICS)\n"
    )
    lines = entry(rows_by_name()["ui_mcp_proxy"]).splitlines()
    assert lines[0] == "--ui-mcp-proxy, --webui-mcp-proxy, --no-ui-mcp-proxy, --no-webui-mcp-proxy"
    assert lines[1].startswith(" " * COLUMN + "Enable")
    assert lines[-1].strip() == "(env: LLAMA_ARG_UI_MCP_PROXY)"


def test_help_tells_states() -> None:
    assert "(no effect: " in entry(rows_by_name()["threads"])
    assert "(not yet implemented: control vectors)" in entry(rows_by_name()["control_vector"])
    assert "(refused: " in entry(rows_by_name()["rpc"])
    assert "(refused: iq4_nl)" in entry(rows_by_name()["cache_type_k"])


def test_lines_are_wrapped() -> None:
    for line in help_text().splitlines():
        if line.startswith(" " * COLUMN):
            assert len(line) - COLUMN <= WIDTH
    assert list(wrap("x" * 80)) == ["x" * 80]


def test_completion_lists_every_spelling_and_is_bash() -> None:
    end = exit_of("--completion-bash")
    assert (end.code, end.stdout) == (0, completion_text())
    listed = end.stdout.split('opts="')[1].split('"')[0].split()
    assert listed == spellings_of(all_rows())
    subprocess.run(["bash", "-n"], input=end.stdout, text=True, check=True, timeout=10)
