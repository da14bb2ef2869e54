"""Tags around reasoning, found in what templates render."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserver.chat.reasoning_tags import ReasoningTags, find_tags


def shown_with_an_answer(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    answers = [m for m in chat if "reasoning_content" in m]
    return "q" + "".join(f"<think>\n{m['reasoning_content']}\n</think>\n\n{m['content']}" for m in answers)


def opened_by_the_prompt(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    return "q<a>" + ("<think>" if thinks else "")


def closed_at_once(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    return "q<a><think>" + ("" if thinks else "</think>")


def added_behind_a_prompt_that_differs(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    return f"mode {thinks}{'q' * 70}<a>\n" + ("" if thinks else "<t></t>")


def switched_without_tags(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    return f"thinking {'on' if thinks else 'off'}<a>"


def indifferent(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> str:
    return "q<a>"


def refusing(chat: list[dict[str, Any]], prompts: bool, thinks: bool) -> None:
    return None


def test_families_are_told_by_their_marks() -> None:
    assert find_tags("{{ '<|tool_call>call:' }}", refusing).end == "<channel|>"
    mistral = "[SYSTEM_PROMPT][TOOL_CALLS][ARGS]"
    assert find_tags(mistral, refusing).start == "[THINK]"
    assert not find_tags(mistral + "[CALL_ID]", refusing)
    assert find_tags("{{ content.split('</think>') }}", refusing).start == "<think>"


@pytest.mark.parametrize(
    ("render", "tags"),
    [
        (shown_with_an_answer, ReasoningTags("<think>\n", "\n</think>\n\n")),
        (opened_by_the_prompt, ReasoningTags("<think>", "")),
        (closed_at_once, ReasoningTags("<think>", "</think>")),
        (added_behind_a_prompt_that_differs, ReasoningTags("<t>", "</t>")),
        (switched_without_tags, ReasoningTags()),
        (indifferent, ReasoningTags()),
        (refusing, ReasoningTags()),
    ],
)
def test_tags(render: Any, tags: ReasoningTags) -> None:
    assert find_tags("", render) == tags
    assert bool(tags) == (tags != ReasoningTags())
