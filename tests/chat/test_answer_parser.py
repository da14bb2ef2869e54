"""The reader of answers: prefilled text, reasoning, text that never ends well."""

from __future__ import annotations

import pytest

from mlxserver.chat.answer_deltas import Answer, Content, Reasoning
from mlxserver.chat.answer_parser import AnswerParser, AnswerRules
from mlxserver.chat.reasoning_tags import ReasoningTags
from tests.chat.formats.cutting import answer_of, check_cuttings
from tests.chat.formats.recorded import BY_NAME, TOOLS

TAGS = ReasoningTags("<think>\n", "\n</think>\n\n")
RULES = AnswerRules(tags=TAGS, skips_space=True)


def test_what_the_prompt_holds_comes_with_the_first_piece() -> None:
    parser = AnswerParser(AnswerRules(start="Bl"))
    assert parser.feed("ue") == [Content("Blue")]
    silent = AnswerParser(AnswerRules(start="Bl", shows_start=False))
    assert silent.feed("ue") == [Content("ue")]
    assert silent.answer == Answer("Blue")


def test_reasoning_that_the_prompt_opened_goes_on() -> None:
    parser = AnswerParser(AnswerRules(start="<think>\nI will", tags=TAGS))
    assert parser.feed(" say it\n</think>\n\nblue") == [Reasoning("I will say it\n"), Content("blue")]


def test_reasoning_that_the_prompt_closed_is_none() -> None:
    rules = AnswerRules(start="<think>\n\n</think>\n\n", tags=TAGS)
    assert answer_of(rules, "\nblue") == Answer("\nblue")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nplan and more", Answer("", "plan and more")),
        ("<think>\n \n</think>\n\nblue", Answer("blue")),
        ("blue <think>x</think> y", Answer("blue <think>x</think> y")),
        ("\n\nblue", Answer("blue")),
        ("<think>\na</th", Answer("", "a</th")),
        ("", Answer()),
    ],
)
def test_reasoning_stands_at_the_beginning(text: str, answer: Answer) -> None:
    assert answer_of(RULES, text) == answer
    check_cuttings(RULES, text)


@pytest.mark.parametrize(("text", "answer"), [("<thi", Answer()), ("<think>\na</th", Answer("", "a"))])
def test_a_mark_that_a_limit_cut_is_dropped(text: str, answer: Answer) -> None:
    assert answer_of(RULES, text, is_complete=False) == answer


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + '{"function": ' * 3000,
        '<tool_call>{"name": "f", "arguments": ' + "[" * 50_000,
        "<|tool_call>call:f{a:" + "[" * 5000,
        "<tool_call>f<arg_key>a</arg_key><arg_value>" + "[" * 50_000 + "</arg_value></tool_call>",
        "<|tool_call_start|>[f(a=" + "[" * 5000 + "]<|tool_call_end|>",
    ],
    ids=["function", "json", "gemma", "tagged", "python"],
)
def test_bottomless_nesting_breaks_nothing(text: str) -> None:
    for family in ("hermes", "gemma4", "glm-4.7", "lfm2", "generic"):
        answer_of(AnswerRules(calls=BY_NAME[family].calls, tools=TOOLS), text)


def test_long_answers_are_read_piece_by_piece() -> None:
    rules = AnswerRules(tags=TAGS, calls=BY_NAME["hermes"].calls, tools=TOOLS)
    parser = AnswerParser(rules)
    for _ in range(20_000):
        parser.feed("wort < ")
    parser.finish()
    assert len(parser.answer.content) == 140_000
