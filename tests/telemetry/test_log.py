from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserver.options import parse_command_line
from mlxserver.telemetry import log


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Puts the process's logging back."""
    loggers = [logging.getLogger(name) for name in (None, log.ROOT, *log.FOREIGN)]
    before = [(logger, logger.level, list(logger.handlers), logger.propagate) for logger in loggers]
    yield
    for logger, level, handlers, propagate in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def configure(*argv: str) -> None:
    log.configure(parse_command_line(argv, {}))


Capture = pytest.CaptureFixture[str]


def test_a_line(capsys: Capture) -> None:
    configure()
    log.srv("main").info("listening on %s", "http://x")
    log.slot("launch_slot_with_task", 0, 12).info("processing task, is_child = %d", 0)
    out, err = capsys.readouterr()
    time = r"\d+\.\d\d\.\d{3}\.\d{3}"
    assert out == ""
    assert re.fullmatch(
        rf"{time} I srv          main: listening on http://x\n"
        rf"{time} I slot launch_slot_: id  0 \| task 12 \| processing task, is_child = 0\n",
        err,
    )


def test_elapsed() -> None:
    assert log.elapsed(0) == "0.00.000.000"
    assert log.elapsed(3 * 60 + 4 + 0.005006) == "3.04.005.006"


LEVELS = ["output", "error", "warning", "info", "trace", "debug"]


def shown(capsys: Capture, *argv: str) -> tuple[str, str]:
    configure("--no-log-timestamps", *argv)
    source = log.srv("f")
    for level in LEVELS:
        getattr(source, level)(level)
    return capsys.readouterr()


@pytest.mark.parametrize("verbosity", range(-1, 8))
def test_verbosity(capsys: Capture, verbosity: int) -> None:
    out, err = shown(capsys, "-lv", str(verbosity))
    found = [line.split()[-1] for line in (out + err).splitlines()]
    assert found == LEVELS[: verbosity + 1]


def test_output_goes_to_stdout_without_a_prefix(capsys: Capture) -> None:
    out, err = shown(capsys, "-v")
    assert out == "srv             f: output\n"
    assert [line[0] for line in err.splitlines()] == ["E", "W", "I", "I", "D"]


def test_log_disable(capsys: Capture) -> None:
    assert shown(capsys, "--log-disable", "-v") == ("", "")


def test_no_prefix(capsys: Capture) -> None:
    configure("--no-log-prefix")
    log.srv("f").warning("w")
    assert capsys.readouterr().err == "srv             f: w\n"


def test_colors(capsys: Capture) -> None:
    configure("--log-colors", "on")
    log.srv("f").info("i")
    log.srv("f").error("e")
    info, error = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\x1b\[34m[\d.]+\x1b\[0m \x1b\[32mI \x1b\[0msrv             f: i", info)
    assert re.fullmatch(r"\x1b\[34m[\d.]+\x1b\[0m \x1b\[31mE srv             f: e\x1b\[0m", error)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "setting, environ, screen, colored",
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("on", {"NO_COLOR": "1"}, False, True),
        ("off", {}, True, False),
    ],
)
def test_when_to_color(
    monkeypatch: pytest.MonkeyPatch, setting: str, environ: dict[str, str], screen: bool, colored: bool
) -> None:
    for name, value in {"NO_COLOR": "", "TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", Screen() if screen else io.StringIO())
    assert log.wants_colors(setting) is colored


def test_log_file(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("old")
    configure("--log-file", str(path), "--log-colors", "on", "--no-log-timestamps")
    log.srv("f").info("é")
    configure()
    assert path.read_text(encoding="utf-8") == "I srv             f: é\n"
    assert "é" in capsys.readouterr().err


def test_a_log_file_that_cannot_be_written_is_told(capsys: Capture, tmp_path: Path) -> None:
    configure("--log-file", str(tmp_path / "no" / "log"))
    assert "failed to open log file" in capsys.readouterr().err


def test_notices_of_the_options_are_told_once(capsys: Capture) -> None:
    options = parse_command_line(["-t", "4", "-c", "1"], {"LLAMA_ARG_CTX_SIZE": "2"})
    log.configure(options)
    plain, hint = capsys.readouterr().err.splitlines()
    assert plain.startswith("warn: LLAMA_ARG_CTX_SIZE environment variable is set")
    assert " W srv       options: -t has no effect: " in hint


def test_a_value_cannot_forge_a_line(capsys: Capture) -> None:
    configure("--no-log-timestamps")
    log.srv("f").warning("name: %s", "x\nI srv main: all is well\x1b[2J\r\u2028\x9b")
    assert capsys.readouterr().err == (
        "W srv             f: name: x\\nI srv main: all is well\\x1b[2J\\r\\u2028\\x9b\n"
    )


@given(st.text())
def test_escaped_text_is_one_harmless_line(text: str) -> None:
    assert len(log.escaped(text).splitlines()) <= 1
    assert all(char >= " " and not "\x7f" <= char <= "\x9f" for char in log.escaped(text))


def test_tracebacks_keep_their_lines(capsys: Capture) -> None:
    configure()
    try:
        raise ValueError("a\x1bb")
    except ValueError:
        log.srv("f").error("failed", exc_info=True)
    err = capsys.readouterr().err
    assert "failed\nTraceback (most recent call last):\n" in err and "a\\x1bb" in err


def test_other_libraries_only_warn_and_requests_are_not_listed(capsys: Capture) -> None:
    configure("--no-log-timestamps")
    for name in ("uvicorn.error", "uvicorn.access", "library"):
        logging.getLogger(name).info("hidden")
    logging.getLogger("uvicorn.access").warning("hidden")
    logging.getLogger("uvicorn.error").warning("shown")
    logging.getLogger("library").warning("shown")
    assert capsys.readouterr().err == "W shown\nW shown\n"


def test_all_is_shown_on_request(capsys: Capture) -> None:
    configure("-v")
    logging.getLogger("uvicorn.access").info("GET /")
    assert "I GET /" in capsys.readouterr().err


def test_configuring_twice_does_not_double_lines(capsys: Capture) -> None:
    configure()
    configure()
    log.srv("f").info("x")
    assert len(capsys.readouterr().err.splitlines()) == 1
