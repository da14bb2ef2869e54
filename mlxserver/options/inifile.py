"""llama.cpp's config.ini files, the system's and the user's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mlxserver.options.builder import Builder
from mlxserver.options.convert import IGNORED, to_int, to_value
from mlxserver.options.exits import Exit
from mlxserver.options.table import Row, all_rows
from mlxserver.options.values import TRUE_WORDS, BadValue, read_text

SYSTEM_FILE = Path("/etc/llama.cpp/config.ini")
NEWLINE = re.compile(r"\r\n|\n|\r")
BLANK = re.compile(r"[ \t]*(?:[;#].*)?", re.DOTALL)
HEADER = re.compile(r"\[[ \t]*([^\]]+)\][ \t]*(?:[;#].*)?", re.DOTALL)
ENTRY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(.*?)[ \t]*(?:[;#].*)?", re.DOTALL)

Section = dict[str, str]


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """The files that may exist, the stronger one last."""
    base = environ.get("XDG_CONFIG_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.config")
    user = [Path(base, "llama.cpp", "config.ini")] if base else []
    return [SYSTEM_FILE, *user]


def parse_config_files(builder: Builder, environ: Mapping[str, str]) -> None:
    for path in config_files(environ):
        if not path.exists():
            continue
        builder.notices.info(f"using config file: {path}")
        try:
            _apply(builder, path)
        except BadValue as error:
            raise Exit(1, stderr=builder.notices.lines() + f"{str(error).rstrip()}\n") from None


def _apply(builder: Builder, path: Path) -> None:
    sections = parse_ini(read_text(str(path)), path)
    for name in ("*", "default"):
        for row, key, text in _known(builder, sections.get(name, {}), path):
            try:
                value = _value(builder, row, key, text)
            except BadValue as error:
                raise BadValue(f"error in config file {path}: {key}: {error}") from None
            if value is not IGNORED:
                builder.use(row, value, f"{key} in {path}")


def parse_ini(text: str, path: Path) -> dict[str, Section]:
    """Sections by name. Keys above any header belong to ``default``; a repeated header starts afresh."""
    sections: dict[str, Section] = {}
    name = "default"
    for line in NEWLINE.split(text):
        if found := HEADER.fullmatch(line):
            name = found[1]
            sections[name] = {}
        elif found := ENTRY.fullmatch(line):
            sections.setdefault(name, {})[found[1]] = found[2]
        elif not BLANK.fullmatch(line):
            raise BadValue(f"failed to parse server config file: {path}")
    return sections


@cache
def _keys() -> Mapping[str, Row]:
    """Every spelling without its dashes and every variable, with its option."""
    found: dict[str, Row] = {}
    for row in all_rows():
        variables = [name for name in (row.env, row.negated_env) if name]
        names = [spelling.lstrip("-") for spelling in (*row.spellings, *row.negated)]
        found.update(dict.fromkeys([*variables, *names], row))
    return found


def _known(builder: Builder, section: Section, path: Path) -> Iterator[tuple[Row, str, str]]:
    """Unknown keys only cost a warning, as all programs share the file; ``version`` is the file's own."""
    for key, text in section.items():
        row = _keys().get(key)
        if key == "version":
            continue
        if row is not None:
            yield row, key, text
        else:
            builder.notices.warning(f"ignoring option '{key}' from {path}: not supported by this program")


def _value(builder: Builder, row: Row, key: str, text: str) -> Any:
    """A plain flag is on whatever its value is."""
    match row.form:
        case "flag":
            return True
        case "switch":
            is_negated = key == row.negated_env or key in [s.lstrip("-") for s in row.negated]
            return (text in TRUE_WORDS) != is_negated
        case "int":
            return to_int(row, text)
        case "pair":
            raise BadValue("option with two values is not supported")
    return to_value(row, text, builder.notices)
