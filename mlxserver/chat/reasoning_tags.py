"""The tags around a template's reasoning, found by comparing renderings that differ in one thing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Render = Callable[..., str | None]
"""``render(messages, add_generation_prompt, enable_thinking)``; ``None`` where the template refuses."""

_MARKER = r"(?:<[^>]*>|\[[^\]]*\])"
_SEGMENTS = re.compile(f"({_MARKER})")
_REASONING = "REASONING_PLACEHOLDER"
_BETWEEN_TAGS = re.compile(rf"({_MARKER}\s*){_REASONING}(\s*{_MARKER}\s*)")
_BEFORE_TAG = re.compile(rf"{_REASONING}\s*({_MARKER}\s*)")
_ANCHOR = 64

_USER: dict[str, Any] = {"role": "user", "content": "A question"}
_PLAIN: dict[str, Any] = {"role": "assistant", "content": "An answer"}


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """With the white space that belongs to them; ``start`` is empty where the prompt has opened it."""

    start: str = ""
    end: str = ""

    def __bool__(self) -> bool:
        return bool(self.start or self.end)


_NO_MINISTRAL = "[CALL_ID]"
"""Tells older Mistral models, which do not think: this mark must not be there."""
_THINK = ReasoningTags("<think>", "</think>")
FAMILIES: tuple[tuple[tuple[str, ...], ReasoningTags], ...] = (
    (("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]", _NO_MINISTRAL), ReasoningTags("[THINK]", "[/THINK]")),
    (("'<|tool_call>call:'",), ReasoningTags("<|channel>thought\n", "<channel|>")),
    (("<|tool_calls_section_begin|>", "<|tool_call_begin|>"), _THINK),
    (("<|tool_list_start|>", "<|tool_list_end|>"), _THINK),
    (("List of tools: [",), _THINK),
    (("<tool_call>", "<function=", "<parameter=", "<think>"), ReasoningTags("<think>\n", "\n</think>\n\n")),
    (
        ("<|START_ACTION|>", "<|START_THINKING|>"),
        ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    (("<SPECIAL_10>", "<SPECIAL_12>", "<TOOL_RESPONSE>"), ReasoningTags("<think>\n", "</think>")),
    (("Write your thoughts between <think></think>", "<response></response>"), _THINK),
)
"""Families of models whose templates do not show their tags: (marks in the source, tags)."""


def find_tags(source: str, render: Render) -> ReasoningTags:
    """No tags for a template that shows no reasoning."""
    for marks, tags in FAMILIES:
        if all((mark in source) == (mark != _NO_MINISTRAL) for mark in marks):
            return tags
    if "content.split('</think>')" in source and "reasoning_content" not in source:
        return _THINK
    shown = _tags_shown(render)
    switched = _tags_switched(render)
    return ReasoningTags(shown.start or switched.start, shown.end or switched.end)


def _tags_shown(render: Render) -> ReasoningTags:
    """From a rendering of an answer that came with its reasoning."""
    text = render([_USER, _PLAIN | {"reasoning_content": _REASONING}], False, True) or ""
    if found := _BETWEEN_TAGS.search(text):
        return ReasoningTags(found[1], found[2])
    if found := _BEFORE_TAG.search(text):
        return ReasoningTags("", found[1])
    return ReasoningTags()


def _tags_switched(render: Render) -> ReasoningTags:
    """From what ``enable_thinking`` changes at the prompt's end."""
    silent, thinking = render([_USER], True, False), render([_USER], True, True)
    if silent is None or thinking is None or silent == thinking:
        return ReasoningTags()
    left, right = _difference(silent, thinking)
    if not left.strip():
        is_opened = bool(right.strip()) and thinking.endswith(right.strip())
        return ReasoningTags(start=right) if is_opened else ReasoningTags()
    if not right.strip():
        return _closed_at_once(silent, left)
    return _added_behind(silent, thinking)


def _closed_at_once(silent: str, left: str) -> ReasoningTags:
    """Without thinking the prompt has the end tag too, right behind the start tag."""
    if not silent.endswith(left.strip()):
        return ReasoningTags()
    segments = [segment for segment in _SEGMENTS.split(silent) if segment.strip()]
    opens = len(segments) > 1 and segments[-1] == left.strip() and _SEGMENTS.fullmatch(segments[-2])
    return ReasoningTags(segments[-2] if opens else "", left)


def _added_behind(silent: str, thinking: str) -> ReasoningTags:
    """Where other parts differ as well: one rendering's end stands in the other, with both tags behind it."""
    for base, extended in ((thinking, silent), (silent, thinking)):
        anchor = base[-_ANCHOR:]
        position = extended.rfind(anchor)
        extra = extended[position + len(anchor) :].strip() if position >= 0 else ""
        segments = [segment.strip() for segment in _SEGMENTS.split(extra) if segment.strip()]
        if len(segments) == 2 and all(_SEGMENTS.fullmatch(segment) for segment in segments):
            return ReasoningTags(*segments)
    return ReasoningTags()


def _difference(left: str, right: str) -> tuple[str, str]:
    """What is left without the common start and end; tags are never cut."""
    a, b = _SEGMENTS.split(left), _SEGMENTS.split(right)
    n_start = len(os.path.commonprefix([a, b]))
    a, b = a[n_start:], b[n_start:]
    n_end = len(os.path.commonprefix([a[::-1], b[::-1]]))
    a, b = a[: len(a) - n_end], b[: len(b) - n_end]
    if a and b and not (_SEGMENTS.fullmatch(a[0]) or _SEGMENTS.fullmatch(b[0])):
        n_text = len(os.path.commonprefix([a[0], b[0]]))
        a[0], b[0] = a[0][n_text:], b[0][n_text:]
    return "".join(a), "".join(b)
