"""Writes docs/options.md from the tables; ``--check`` fails when the file is stale."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mlxserver.options.help import shown_default
from mlxserver.options.table import COMPATIBLE_BUILD, Row, llama_server_rows, own_rows, rows_by_name

FILE = Path("docs/options.md")

HEAD = f"""\
# Options

Generated from `compat/` by `python -m mlxserver.options.docs`; edit the tables instead.

mlxserver takes every option of llama-server b{COMPATIBLE_BUILD}, by the same spellings and environment
variables. Config files come first (`/etc/llama.cpp/config.ini`, then `llama.cpp/config.ini` in
`$XDG_CONFIG_HOME` or `~/.config`), then the environment, then the command line; the last one wins.

- **honoured**: does what it does in llama-server.
- **hint**: accepted; it has no effect on MLX, and one line at start says so.
- **deferred**: refused at start with "not yet implemented", unless its value asks for nothing.
- **refused**: refused at start; MLX has no such operation, or llama-server has removed the option.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{cell(text)}`" for text in texts)


def state_cell(row: Row) -> str:
    notes = [row.reason] if row.reason and not row.refused_values else []
    if row.state == "honoured" and (blocked := deferred_parts(row)):
        notes.append(f"refused so far, since it sets {code(blocked)}")
    if row.deferred_values:
        notes.append(f"deferred: {code(map(str, row.deferred_values))}")
    if row.refused_values:
        notes.append(f"refused: {code(map(str, row.refused_values))}, {row.reason}")
    return f"**{row.state}**" + (f": {cell('; '.join(notes))}" if notes else "")


def deferred_parts(row: Row) -> list[str]:
    """The deferred options that a bundle stands for."""
    parts = [rows_by_name()[name] for name in row.sets.get("on", {})]
    return [part.long for part in parts if part.state == "deferred"]


def line(row: Row) -> str:
    spellings = code((*row.spellings, *row.negated)) + (f" {cell(f'`{row.hint}`')}" if row.hint else "")
    default = shown_default(row)
    description = row.description + (f" (default: {default})" if default else "")
    variable = f"`{row.env}`" if row.env else ""
    return f"| {spellings} | {variable} | {cell(description)} | {state_cell(row)} |\n"


def section(title: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"\n## {title}\n\n| Option | Environment | Meaning | State |\n|---|---|---|---|\n"
    yield from map(line, rows)


def text() -> str:
    rows = llama_server_rows()
    counts = Counter(row.state for row in rows)
    parts = [HEAD, f"\n{len(rows)} options: {', '.join(f'{n} {state}' for state, n in counts.items())}.\n"]
    parts += section("Own options", own_rows())
    for group in dict.fromkeys(row.group for row in rows):
        parts += section(f"llama-server: {group}", [row for row in rows if row.group == group])
    return "".join(parts)


def main(arguments: Sequence[str]) -> int:
    if "--check" not in arguments:
        FILE.write_text(text(), encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text():
        return 0
    print(f"{FILE} is stale: run python -m mlxserver.options.docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
