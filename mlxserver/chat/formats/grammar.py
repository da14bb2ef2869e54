"""Grammars of tool calls, written in llguidance's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from mlxserver.models.model import Tokenizer
from mlxserver.sampling.grammar.lark import HEAD

_MARKER = re.compile(r"(<[^<>]+>|\[[^\[\]]+\])")
ANY_TEXT = r"(?s:.*)"
SPACE_RULE = r"/[ \n\t]{0,20}/"
"""White space between JSON's parts; without a bound a model may never come to the next one."""


class GrammarWriter:
    """Collects rules; every method that makes one returns the expression that stands for it."""

    def __init__(self, special_token: Callable[[str], int | None]) -> None:
        """``special_token`` names the token that a text is, if it is one that has no text in a grammar."""
        self._special_token = special_token
        self._rules: list[str] = []

    def finish(self, start: str) -> str:
        return "\n".join([HEAD, f"start: {start}", *self._rules])

    def rule(self, expression: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def text(self, text: str) -> str:
        """Exactly ``text``; special tokens in it are those tokens."""
        parts = [part for part in _MARKER.split(text) if part]
        return " ".join(self._part(part) for part in _joined(parts, self._is_special)) or '""'

    def _is_special(self, text: str) -> bool:
        return self._special_token(text) is not None

    def _part(self, text: str) -> str:
        token = self._special_token(text)
        return json.dumps(text, ensure_ascii=False) if token is None else f"<[{token}]>"

    def json(self, schema: Any) -> str:
        return self.rule(f"%json {json.dumps(schema, ensure_ascii=False)}")

    def space(self) -> str:
        return self.rule(SPACE_RULE)

    def text_until(self, end: str, text: str = ANY_TEXT) -> str:
        """What the pattern ``text`` matches, up to the first ``end``, and that."""
        mark = next((part for part in _MARKER.split(end) if part and self._is_special(part)), None)
        if mark is None:
            return self.rule(f"/{text}{_escaped(end)}/", "[lazy]")
        return f"({self.rule(f'/{text}/')} {self.text(end)})"

    def one_of(self, expressions: Iterable[str]) -> str:
        return "(" + " | ".join(expressions) + ")"


def many(call: str, separator: str, is_parallel: bool) -> str:
    """One call, or more where they may be parallel."""
    if not is_parallel:
        return call
    following = f"({separator} {call})*" if separator else f"({call})*"
    return f"{call} {following}"


def special_token_of(tokenizer: Tokenizer) -> Callable[[str], int | None]:
    def find(text: str) -> int | None:
        tokens = tokenizer.encode(text, parse_special=True)
        return tokens[0] if len(tokens) == 1 and tokenizer.is_special(tokens[0]) else None

    return find


def _joined(parts: list[str], is_special: Callable[[str], bool]) -> list[str]:
    """Neighbouring parts that are plain text as one."""
    joined: list[str] = []
    was_plain = False
    for part in parts:
        plain = not is_special(part)
        if plain and was_plain:
            joined[-1] += part
        else:
            joined.append(part)
        was_plain = plain
    return joined


def _escaped(text: str) -> str:
    """``text`` as a pattern between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n").replace("\n", r"\n")
