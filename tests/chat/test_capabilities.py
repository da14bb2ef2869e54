"""What a template can show; the expectations were taken from llama-server's ``/props``."""

from __future__ import annotations

import pytest

from mlxserver.chat.capabilities import Capabilities, probe

PLAIN = Capabilities(supports_parallel_tool_calls=False, supports_tool_calls=False, supports_tools=False)


def names(source: str) -> set[str]:
    return {name.removeprefix("supports_") for name, is_true in probe(source).json().items() if is_true}


def test_a_plain_template() -> None:
    assert probe("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}") == PLAIN


def test_a_template_that_iterates_content_takes_parts_only() -> None:
    found = names("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}")
    assert "typed_content" in found
    assert "string_content" not in found


def test_a_template_that_asks_for_the_kind_takes_both() -> None:
    found = names(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% elif m.content is iterable %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
        "{% endfor %}"
    )
    assert "string_content" in found


def test_a_system_message_that_nobody_reads() -> None:
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    assert "system_role" not in names(source)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{ tools | tojson }}", {"tools"}),
        ("{{ tools | string }}", {"tools"}),
        ("{{ m.get('tool_calls') }}", {"tool_calls"}),
        ("{% for t in tools %}{{ t.function.name }}{% endfor %}", {"tools"}),
        ("{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}", {"tool_calls", "parallel_tool_calls"}),
        ("{% for c in m.tool_calls %}{{ c.function.arguments.arg }}{% endfor %}", {"object_arguments"}),
        ("{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% endif %}", {"tool_calls"}),
        ("{{ m.reasoning_content }}", {"preserve_reasoning"}),
        ("{% if reasoning_effort is defined %}x{% endif %}", {"reasoning_effort"}),
        ("{{ 'Effort: ' + reasoning_effort }}", {"reasoning_effort"}),
    ],
)
def test_features_are_found_where_values_are_read(body: str, expected: set[str]) -> None:
    found = names("{% for m in messages %}{{ m.content }}" + body + "{% endfor %}")
    assert expected <= found


def test_calls_beyond_the_first_must_be_read_to_count() -> None:
    source = "{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.name }}{% endfor %}"
    assert "parallel_tool_calls" not in names(source)


def test_the_report_has_every_capability_in_alphabetical_order() -> None:
    report = list(PLAIN.json())
    assert report == sorted(report)
    assert len(report) == 9
