"""Log lines in llama-server's form, on Python's ``logging``.

A line is ``M.SS.mmm.uuu L srv      function: text``: the time since start, the level's letter, the
source. Verbosity 0 shows output only, 1 errors, 2 warnings, 3 information, 4 traces, 5 all.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from mlxserver.options import Options

OUTPUT = 60
TRACE = 15
THRESHOLDS = (OUTPUT, logging.ERROR, logging.WARNING, logging.INFO, TRACE, logging.DEBUG)
"""The lowest level that each verbosity shows."""

RESET, RED, GREEN, YELLOW, BLUE, MAGENTA = (f"\033[{code}m" for code in (0, 31, 32, 33, 34, 35))
LETTERS = {
    logging.CRITICAL: ("E", RED),
    logging.ERROR: ("E", RED),
    logging.WARNING: ("W", MAGENTA),
    logging.INFO: ("I", GREEN),
    TRACE: ("I", GREEN),
    logging.DEBUG: ("D", YELLOW),
}

ROOT = "mlxserver"
FOREIGN = {"uvicorn": logging.WARNING, "uvicorn.access": OUTPUT + 1}
"""Loggers that bring handlers of their own: they use ours, from these levels on."""

CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
CONTROL |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}

_start = time.monotonic()


def escaped(text: str) -> str:
    """``text`` on one line, without anything that a terminal obeys."""
    return text.translate(CONTROL)


class Source(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines begin with ``prefix``."""

    def __init__(self, logger: logging.Logger, prefix: str) -> None:
        super().__init__(logger)
        self.prefix = prefix

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self.prefix}{msg}", kwargs

    def trace(self, msg: str, *args: object) -> None:
        self.log(TRACE, msg, *args)

    def output(self, msg: str, *args: object) -> None:
        self.log(OUTPUT, msg, *args)


def srv(function: str) -> Source:
    """The server's log, as seen from ``function``."""
    return Source(logging.getLogger(f"{ROOT}.srv"), f"srv  {function[:12]:>12}: ")


def slot(function: str, id: int, task: int = -1) -> Source:
    """A slot's log; ``task`` is -1 where it has none."""
    prefix = f"slot {function[:12]:>12}: id {id:2d} | task {task} | "
    return Source(logging.getLogger(f"{ROOT}.slot"), prefix)


class Formatter(logging.Formatter):
    """Control characters are escaped, so that a value from outside cannot forge a line."""

    def __init__(self, prefix: bool, timestamps: bool, colors: bool) -> None:
        super().__init__()
        self.prefix = prefix
        self.timestamps = timestamps
        self.colors = colors

    def format(self, record: logging.LogRecord) -> str:
        text = escaped(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text = "\n".join([text, *(escaped(line) for line in trace.splitlines())])
        letter, color = LETTERS.get(record.levelno, ("", ""))
        if not self.prefix or not letter:
            return text
        if not self.colors:
            return f"{self._time()}{letter} {text}"
        # Only an information line's letter is coloured; other lines are as a whole.
        head, tail = (f"{RESET}", "") if letter == "I" else ("", RESET)
        return f"{self._time()}{color}{letter} {head}{text}{tail}"

    def _time(self) -> str:
        if not self.timestamps:
            return ""
        text = elapsed(time.monotonic() - _start)
        return f"{BLUE}{text}{RESET} " if self.colors else f"{text} "


def elapsed(seconds: float) -> str:
    """Minutes, seconds, milliseconds and microseconds: ``M.SS.mmm.uuu``."""
    us = int(seconds * 1_000_000)
    return f"{us // 60_000_000}.{us // 1_000_000 % 60:02d}.{us // 1000 % 1000:03d}.{us % 1000:03d}"


class Terminal(logging.StreamHandler[TextIO]):
    """Output goes to stdout, everything else to stderr, whatever these are at that time."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout if record.levelno == OUTPUT else sys.stderr
        super().emit(record)


class File(logging.FileHandler):
    """The ``--log-file``, begun afresh at each start."""

    def __init__(self, path: str) -> None:
        super().__init__(path, mode="w", encoding="utf-8", errors="backslashreplace")


def wants_colors(setting: str) -> bool:
    """``auto`` colours a terminal unless NO_COLOR or a dumb terminal asks for none."""
    if setting != "auto":
        return setting == "on"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty() or sys.stderr.isatty()


def level_of(verbosity: int) -> int:
    """The lowest level that is shown; a negative verbosity shows nothing."""
    return OUTPUT + 1 if verbosity < 0 else THRESHOLDS[min(verbosity, len(THRESHOLDS) - 1)]


def configure(options: Options) -> None:
    """Sets logging up as the options say, in place of an earlier set-up, and tells their notices."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, Terminal | File)]:
        root.removeHandler(handler)
        handler.close()
    level = level_of(-1 if options.log_disable else options.verbosity)
    _set_levels(level)
    terminal = Terminal()
    terminal.setFormatter(_formatter(options, wants_colors(options.log_colors)))
    root.addHandler(terminal)
    if options.log_file:
        _add_file(root, options)
    _report(options)


def _formatter(options: Options, colors: bool) -> Formatter:
    return Formatter(options.log_prefix, options.log_timestamps, colors)


def _set_levels(level: int) -> None:
    """Libraries only warn, unless everything is asked for."""
    everything = level <= logging.DEBUG
    logging.getLogger().setLevel(max(level, logging.INFO if everything else logging.WARNING))
    logging.getLogger(ROOT).setLevel(level)
    for name, own_level in FOREIGN.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.INFO if everything else max(level, own_level))


def _add_file(root: logging.Logger, options: Options) -> None:
    try:
        file = File(options.log_file)
    except OSError as error:
        srv("log").error("failed to open log file '%s': %s", options.log_file, error.strerror)
        return
    file.setFormatter(_formatter(options, colors=False))
    root.addHandler(file)


def _report(options: Options) -> None:
    levels = {"info": logging.INFO, "warning": logging.WARNING}
    for notice in options.notices:
        if notice.level == "plain":
            print(notice.text, file=sys.stderr)
        else:
            srv("options").log(levels[notice.level], "%s", notice.text)
