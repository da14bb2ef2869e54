"""The tables against themselves, and against the code that reads the options."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxserver.options.builder import EFFECTS
from mlxserver.options.convert import CONVERTERS
from mlxserver.options.help import SECTIONS
from mlxserver.options.table import Row, all_rows, llama_server_rows, own_rows, rows_by_name, spellings_of

PACKAGE = Path(__file__).resolve().parents[2] / "mlxserver"
STATES = {"honoured", "hint", "refused", "deferred"}
ANSWERED_HERE = {"help", "version", "cache_list", "list_devices", "completion_bash", "escape"}
"""Honoured options that options/ itself serves."""
OWN_TABLE = PACKAGE / "validate"
"""A command with options of its own."""


def test_every_option_of_the_build_has_a_row() -> None:
    rows = llama_server_rows()
    assert len(rows) == 249
    assert len(spellings_of(rows)) == 407
    assert len([row for row in rows if row.env]) == 136
    assert len([row for row in rows if row.negated]) == 28


def test_nothing_is_listed_twice() -> None:
    names = [row.name for row in all_rows()]
    variables = [name for row in all_rows() for name in (row.env, row.negated_env) if name]
    for texts in (names, spellings_of(all_rows()), variables):
        assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.name)
def test_row(row: Row) -> None:
    assert row.name == {"predict": "n_predict"}.get(name := re.sub("[-.]", "_", row.long[2:]), name)
    assert row.state in STATES and row.section in SECTIONS and row.group and row.description
    assert row.reason or row.state == "honoured"
    assert row.type in CONVERTERS
    assert bool(row.negated) == (row.form == "switch")
    assert bool(row.hint) == (row.form in ("int", "string", "pair"))
    assert row.target is None or rows_by_name()[row.target].target is None
    for values in row.sets.values():
        assert all(rows_by_name()[name].target is None for name in values)


@pytest.mark.parametrize("row", [row for row in all_rows() if row.choices], ids=lambda row: row.name)
def test_choices_name_their_default_and_their_error(row: Row) -> None:
    assert row.default in (*row.choices, "", ())
    assert row.error
    assert {*row.deferred_values, *row.refused_values} <= set(row.choices)


def test_own_options_are_few() -> None:
    assert [row.name for row in own_rows()] == [
        "dtype",
        "weights",
        "cache_tenants",
        "strict_http",
        "max_loras",
        "lora_dir",
        "kv_events",
        "cache_disk",
        "cache_disk_size",
        "cache_disk_prefetch",
        "cache_disk_timeout",
        "watchdog",
        "memory_limit",
        "max_queue",
        "max_connections",
        "allowed_hosts",
    ]
    assert all(row.env and row.env.startswith("MLXSERVER_") for row in own_rows())


def nodes() -> Iterator[ast.AST]:
    """The syntax of the whole package but for options/."""
    for path in (path for path in PACKAGE.rglob("*.py") if OWN_TABLE not in path.parents):
        if path.parent.name != "options":
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def names_in_texts() -> set[str]:
    """Names that tables hold, to be read by ``getattr``."""
    return {node.value for node in nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def direct_reads() -> set[str]:
    """Every ``options.NAME``."""
    return {node.attr for node in nodes() if isinstance(node, ast.Attribute) and is_options(node.value)}


def is_options(node: ast.expr) -> bool:
    return getattr(node, "id", None) == "options" or getattr(node, "attr", None) == "options"


def test_every_honoured_option_is_read() -> None:
    reads = direct_reads() | names_in_texts() | ANSWERED_HERE | set(EFFECTS) - {"dry_sequence_breaker"}
    honoured = [row for row in all_rows() if row.state == "honoured" and not row.sets]
    unread = [row.name for row in honoured if row.value_name not in reads]
    assert unread == []


def test_every_read_option_exists() -> None:
    known = {row.name for row in all_rows() if not row.target} | {"given", "has_model", "notices"}
    assert direct_reads() - known == set()


def test_every_converter_is_used() -> None:
    assert {row.type for row in all_rows() if row.form == "string"} == set(CONVERTERS)


def test_named_tests_exist() -> None:
    root = Path(__file__).parents[2]
    named = [test for row in all_rows() for test in row.tests]
    assert named
    for test in named:
        file, _, function = test.partition("::")
        assert (root / file).is_file(), test
        assert f"def {function}" in (root / file).read_text(encoding="utf-8"), test


def test_options_of_cache_and_slots_are_honoured_with_a_test_or_name_what_is_missing() -> None:
    for row in all_rows():
        if row.group == "cache/slots":
            assert row.tests if row.state == "honoured" else row.reason, row.name
