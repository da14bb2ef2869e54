"""The grammars that keep an answer to its form: tool calls to their schemas, JSON to its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mlxserver.chat.formats.calls import CallFormat, Tools
from mlxserver.chat.formats.grammar import GrammarWriter
from mlxserver.chat.messages import Message
from mlxserver.chat.reasoning_tags import ReasoningTags
from mlxserver.sampling.grammar.schema import schema_grammar
from mlxserver.sampling.grammar.schema_words import compact
from mlxserver.sampling.params import Grammar

SpecialToken = Callable[[str], int | None]


def required_grammar(
    calls: CallFormat, tools: Tools, thought: Thought, special_token: SpecialToken
) -> Grammar:
    """An answer that is calls, behind its reasoning if it may have one."""
    writer = GrammarWriter(special_token)
    reasoning = thought.grammar(writer)
    return Grammar("lark", writer.finish(f"{reasoning} {writer.space()} {calls.grammar(writer, tools)}"))


def lazy_grammar(calls: CallFormat, tools: Tools, special_token: SpecialToken) -> Grammar | None:
    """What holds from a call's mark on; None where no mark tells a call from text."""
    if not calls.opening:
        return None
    writer = GrammarWriter(special_token)
    return Grammar("lark", writer.finish(calls.grammar(writer, tools)), lazy=True)


def json_grammar(
    schema: Any, thought: Thought, special_token: SpecialToken, may_be_fenced: bool = False
) -> Grammar:
    """An answer that fits a JSON schema (an empty one: an object), behind its reasoning if it may have one.

    ``may_be_fenced``: in a Markdown fence, too; the answer's reader takes that away.

    Raises SchemaError.
    """
    schema_grammar(schema)
    writer = GrammarWriter(special_token)
    reasoning = thought.grammar(writer)
    if not reasoning:
        return Grammar("json_answer" if may_be_fenced else "json_schema", compact(schema))
    answer = writer.json(schema or {"type": "object"})
    if may_be_fenced:
        answer = f'("```json" {writer.space()} {answer} {writer.space()} "```" | {answer})'
    return Grammar("lark", writer.finish(f"{reasoning} {writer.space()} {answer}"))


class Thought:
    """The reasoning that an answer may begin with, or goes on with what the prompt opened."""

    def __init__(self, tags: ReasoningTags, answer_start: str, thinks: bool) -> None:
        start, end = tags.start.strip(), tags.end.strip()
        self._start = tags.start
        self._end = end
        self._is_open = bool(start) and start in answer_start and end not in answer_start
        self._may_begin = bool(start and end) and not answer_start and thinks

    def grammar(self, writer: GrammarWriter) -> str:
        if self._is_open:
            return writer.text_until(self._end)
        if self._may_begin:
            return f"({writer.text(self._start)} {writer.text_until(self._end)})?"
        return ""


def with_tools_described(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """For templates that cannot show tools: the system message tells of them."""
    shown = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        'Answer with a JSON object of the form {"name": function name, "arguments": its arguments}, '
        f"which calls one of these functions:\n{shown}"
    )
    first = messages[0] if messages else None
    if first is not None and first.role == "system":
        return (Message("system", f"{first.text(chr(10))}\n\n{text}"), *messages[1:])
    return (Message("system", text), *messages)
