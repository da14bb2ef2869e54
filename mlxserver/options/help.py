"""``--help`` and ``--completion-bash``, in llama-server's layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlxserver.options.table import Row, all_rows, spellings_of

COLUMN = 40
WIDTH = 70
SECTIONS = ("common", "sampling", "speculative", "example-specific", "mlxserver")

COMPLETION = """\
_mlxserver_completions() {{
    local cur prev opts
    COMPREPLY=()
    cur="${{COMP_WORDS[COMP_CWORD]}}"
    prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    opts="{options}"

    case "$prev" in
        --model|-m)
            COMPREPLY=( $(compgen -f -X '!*.gguf' -- "$cur") $(compgen -d -- "$cur") ) ;;
        --grammar-file)
            COMPREPLY=( $(compgen -f -X '!*.gbnf' -- "$cur") $(compgen -d -- "$cur") ) ;;
        --chat-template-file)
            COMPREPLY=( $(compgen -f -X '!*.jinja' -- "$cur") $(compgen -d -- "$cur") ) ;;
        *)
            COMPREPLY=( $(compgen -W "${{opts}}" -- "$cur") ) ;;
    esac
}}

complete -F _mlxserver_completions mlxserver
"""


def shown_default(row: Row) -> str:
    """The default as help and docs print it, empty where there is none worth saying."""
    if row.shown:
        return row.shown
    value: Any = row.default
    if isinstance(value, bool):
        return ("on" if value else "off") if row.form == "switch" else ""
    if value in (None, "", (), {}):
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def state_note(row: Row) -> str:
    match row.state:
        case "hint":
            return f"(no effect: {row.reason})"
        case "deferred":
            return f"(not yet implemented: {row.reason})"
        case "refused":
            return f"(refused: {row.reason})"
    blocked = (("not yet implemented", row.deferred_values), ("refused", row.refused_values))
    return " ".join(f"({word}: {', '.join(values)})" for word, values in blocked if values)


def _help_lines(row: Row) -> Iterator[str]:
    default = shown_default(row)
    yield row.description + (f" (default: {default})" if default else "")
    yield from filter(None, [state_note(row)])
    if row.env:
        yield f"(env: {row.env})"


def wrap(line: str) -> Iterator[str]:
    """At spaces only; a line that fits stays as it is."""
    if len(line) <= WIDTH:
        yield line
        return
    current = ""
    for word in line.split():
        if current and len(current) + 1 + len(word) > WIDTH:
            yield current
            current = word
        else:
            current = f"{current} {word}" if current else word
    if current:
        yield current


def entry(row: Row) -> str:
    """The help of one option, ending in a newline."""
    first, *others = spellings_of([row])
    left = f"{first}, ".ljust(7) + ", ".join(others) if others else first
    if row.hint:
        left += f" {row.hint}"
    left = left.ljust(COLUMN) if len(left) <= COLUMN - 3 else left + "\n" + " " * COLUMN
    lines = [part for line in _help_lines(row) for part in wrap(line)]
    return left + ("\n" + " " * COLUMN).join(lines) + "\n"


def help_text() -> str:
    parts = []
    for section in SECTIONS:
        entries = "".join(entry(row) for row in all_rows() if row.section == section)
        parts.append(f"----- {section} params -----\n\n{entries}")
    return "\n\n".join(parts)


def completion_text() -> str:
    options = [spelling for row in all_rows() for spelling in (*row.spellings, *row.negated)]
    return COMPLETION.format(options=" ".join(options))
