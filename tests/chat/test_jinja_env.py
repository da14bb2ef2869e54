"""Where llama.cpp's jinja engine and jinja2 differ, and what a template may not do."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.chat.errors import TemplateError
from mlxserver.chat.jinja_env import TemplateEnvironment, compile_template, render


def shown(source: str, **context: Any) -> str:
    return render(compile_template(TemplateEnvironment(), source), context)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ none }}|{{ missing }}|{{ missing.a.b }}", "||"),
        ("{{ true }} {{ false }}", "True False"),
        ("{{ 'a' + none }}{{ none + 'b' }}{{ 'c' + missing }}{{ missing + 'd' }}", "abcd"),
        ("{{ 'a' ~ none ~ 1 ~ missing }}", "a1"),
        ("{{ 'a' + 1 }}", "a1"),
        ("{{ [1, 'x', none, [2]] }}{{ (3, 4) }}", "1x234"),
        ("{{ {'a': 1} }}", ""),
        ("{{ 0.1 + 0.2 }} {{ 3.0 }} {{ 1 / 2 }}", "0.3 3.0 0.5"),
        ("{{ [1] + [2] }}", "12"),
        ("{{ 1 in missing }}", "False"),
    ],
)
def test_values_are_shown_as_llama_cpp_shows_them(source: str, text: str) -> None:
    assert shown(source) == text


def test_json_keeps_order_and_characters() -> None:
    value = {"b": "<é>", "a": [1, None, True]}
    assert shown("{{ v | tojson }}", v=value) == '{"b": "<é>", "a": [1, null, true]}'
    assert shown("{{ v | tojson(indent=1) }}", v={"a": 1}) == '{\n "a": 1\n}'


def test_blocks_leave_no_blank_lines() -> None:
    assert shown("a\n  {% if true %}\n  b\n  {% endif %}\nc") == "a\n  b\nc"


def test_generation_blocks_show_their_body() -> None:
    assert shown("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"


def test_filtered_items_are_lists() -> None:
    source = "{% set xs = items | map(attribute='a') %}{{ xs | length }}{{ xs | tojson }}{{ xs | length }}"
    assert shown(source, items=[{"a": 1}, {"a": 2}]) == "2[1, 2]2"
    assert shown("{{ 'a<b' | safe + '<' }}") == "a<b<"


def test_loops_know_their_place() -> None:
    source = "{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ '!' if loop.last }}{% endfor %}"
    assert shown(source, xs="ab") == "1/22/2!"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 999999999 }}",
        "{{ 2 ** 999999 }}",
        "{{ ''.__class__.__mro__ }}{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ range(10000000) | list }}",
        "{{ 1 / 0 }}",
        "{{ missing() }}",
        "{{ raise_exception('told to') }}",
    ],
)
def test_a_template_that_misbehaves_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        shown(source)


def test_a_template_may_build_lists() -> None:
    assert shown("{% set xs = [1] %}{% set _ = xs.append(2) %}{{ xs }}") == "12"


def test_a_broken_template_tells_its_line() -> None:
    with pytest.raises(TemplateError, match="at line 2"):
        compile_template(TemplateEnvironment(), "a\n{{ b")
