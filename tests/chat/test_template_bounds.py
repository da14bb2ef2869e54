"""Templates that come with a model are somebody else's programs: they reach nothing and take little."""

from __future__ import annotations

import time

import pytest

from mlxserver.chat.errors import TemplateError
from mlxserver.chat.jinja_env import TemplateEnvironment, compile_template, render

GROW = (
    "{% set o = namespace(s=START) %}{% for i in range(60) %}{% set o.s = STEP %}{% endfor %}{{ o.s|length }}"
)
NEST = "{% set o = namespace(s=1) %}{% for i in range(60) %}{% set o.s = [o.s, o.s] %}{% endfor %}"


def rendered(source: str) -> str:
    context = {"messages": [{"role": "user", "content": "hi"}], "x": "a" * 1000}
    return render(compile_template(TemplateEnvironment(), source), context)


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "''.__class__.__mro__",
        "messages.__class__",
        "cycler.__init__.__globals__",
        "namespace.__init__.__globals__",
        "raise_exception.__globals__",
        "strftime_now.__globals__.sys",
        "self._TemplateReference__context",
        "'{0.__class__}'.format(1)",
        "'x'|attr('__class__')",
        "'x'|attr('\\x5f\\x5fclass\\x5f\\x5f')",
        "[1]|map(attribute='__class__')|list",
        "dict.fromkeys.__self__",
        "messages.append.__self__",
        "'abc'.split.__func__",
        "range.__class__",
        "x.format.__globals__",
        "config",
        "request",
    ],
)
def test_nothing_outside_can_be_reached(expression: str) -> None:
    assert rendered("{{ " + expression + " }}") == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as o %}{{ o }}",
        "{% extends '/etc/passwd' %}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ '%s'.__mod__(1) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ x.encode() }}",
        "{{ x.translate({97: x}) }}",
        "{{ x.ljust(1000000000)|length }}",
        "{{ x.zfill(1000000000)|length }}",
        "{{ x.expandtabs(1000000000)|length }}",
        "{{ x|center(1000000000) }}",
        "{{ x|indent(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{0:>{1}}'.format('a', 2000000000) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10 }}",
        "{{ [1]|batch(1000000000, 0)|list }}",
        "{{ [1]|slice(100000000)|list }}",
        "{{ range(1000000000)|list }}",
        "{{ messages|tojson(indent=1000000000) }}",
        "{{ messages|tojson(indent='a' * 1000000) }}",
        "{% set o = namespace(n=3) %}{% for i in range(40) %}{% set o.n = o.n * o.n %}{% endfor %}{{ o.n }}",
        "{% set s = 'a' * 9999999 %}{% for i in range(2000) %}{{ s }}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        *(
            GROW.replace("START", start).replace("STEP", step)
            for start, step in [
                ("'a'", "o.s + o.s"),
                ("'a'", "o.s ~ o.s"),
                ("'a'", "o.s.replace('a', 'aa')"),
                ("'a'", "o.s|replace('a', 'aa')"),
                ("['a']", "o.s + o.s"),
                ("'a'", "[o.s, o.s]|join"),
                ("'a'", "''.join([o.s, o.s])"),
                ("'a'", "(o.s, o.s)|join(o.s)"),
            ]
        ),
        NEST + "{{ o.s|tojson }}",
        NEST + "{{ o.s|string }}",
        NEST + "{{ '' ~ o.s }}",
        NEST + "{{ o.s }}",
    ],
)
def test_what_takes_too_much_is_refused(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(TemplateError):
        rendered(source)
    assert time.monotonic() - start < 9


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%05.1f|%s' % (2.5, 'b') }}", "002.5|b"),
        ("{{ '{:>5}{}'.format('a', 1) }}", "    a1"),
        ("{{ 'a-b'.replace('-', '+', 1) }}{{ 'a-b-c'|replace('-', '', 1) }}", "a+bab-c"),
        ("{{ [1, 'b']|join(', ') }}{{ messages|join(',', attribute='role') }}", "1, buser"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ '-' * 3 }}{{ 3 * 4 }}{{ 7 % 4 }}", "---123"),
        ("{{ 'a' ~ 1 ~ none ~ 2.0 }}", "a12.0"),
        ("{{ messages|tojson(indent=1) }}", '[\n {\n  "role": "user",\n  "content": "hi"\n }\n]'),
    ],
)
def test_what_templates_do_works(source: str, text: str) -> None:
    assert rendered(source) == text
