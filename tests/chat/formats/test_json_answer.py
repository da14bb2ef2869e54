"""JSON answers lose a fence around them, whole or cut."""

from __future__ import annotations

import pytest

from mlxserver.chat.answer_parser import AnswerRules
from mlxserver.chat.formats.json_answer import JsonAnswer
from tests.chat.formats.cutting import answer_of, check_cuttings

RULES = AnswerRules(calls=JsonAnswer(), skips_space=True)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"é": [1, "```"]}', '{"é": [1, "```"]}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("```json\nfalse\n```", "false"),
        (" \n12.5 ", "12.5"),
        ('"text"', '"text"'),
        ("null", "null"),
        ("", ""),
    ],
)
def test_what_is_left(text: str, content: str) -> None:
    assert answer_of(RULES, text).content == content
    check_cuttings(RULES, text)


def test_a_cut_answer_is_what_there_is_of_it() -> None:
    assert answer_of(RULES, '```json\n{"a":  ', is_complete=False).content == '{"a":'
    assert answer_of(RULES, "```js", is_complete=False).content == ""
