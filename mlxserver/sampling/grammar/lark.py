"""Rules → llguidance's notation.

llguidance cuts a text into lexemes, each as long as possible, where llama.cpp's grammars look at single
characters. So every character is a lexeme of its own here; only JSON strings, whose end shows, are one.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlxserver.sampling.grammar.json_strings import JsonStrings
from mlxserver.sampling.grammar.nodes import (
    Alt,
    Chars,
    GrammarError,
    Json,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Token,
)
from mlxserver.sampling.grammar.recursion import productive
from mlxserver.sampling.grammar.regex import bounds, char_class

MAX_LENGTH = 4_000_000
_NOTHING = '""'

HEAD = '%llguidance {"no_forcing": true}'
"""Text without any choice may still be cut into any tokens, the likeliest ones, as in llama.cpp."""


def to_lark(rules: Rules, root: str = "root") -> str:
    """``root`` becomes ``start``. Raises GrammarError where no text at all can come from it."""
    if root not in (living := productive(rules)):
        raise GrammarError("no text fits the grammar")
    return _Writer(rules, living, root).text()


class _Writer:
    def __init__(self, rules: Rules, living: frozenset[str], root: str) -> None:
        self._rules = {name: rule for name, rule in rules.items() if name in living}
        self._strings = JsonStrings(self._rules)
        self._numbers = {root: 0}
        """The number of each rule that was met."""
        self._met = [root]
        self._terminals: dict[str, str] = {}
        """The name of each lexeme, by its regular expression."""

    def text(self) -> str:
        lines: list[str] = []
        for number, name in enumerate(self._met):  # which grows meanwhile
            lines.append(f"r{number}: {self._node(self._rules[name]) or _NOTHING}")
        lines += [f"{name}: /{regex}/" for regex, name in self._terminals.items()]
        text = "\n".join([HEAD, "start: r0", *lines, ""])
        if len(text) > MAX_LENGTH:
            raise GrammarError("the grammar is too large")
        return text

    def _node(self, node: Node) -> str | None:
        """The node's notation, empty where only the empty text fits; None where no text does."""
        match node:
            case Chars(ranges):
                return self._lexeme(char_class(ranges)) if ranges else None
            case Token(id, negated):
                return f"<[^{id}]>" if negated else f"<[{id}]>"
            case Json(schema):
                return f"%json {schema}"
            case Ref(name):
                return self._rule(name) if name in self._rules else None
            case Seq(items):
                return self._sequence(items)
            case Alt(options):
                return self._alternatives(options)
            case Repeat(item, least, most):
                return self._repetition(item, least, most)

    def _sequence(self, items: Iterable[Node]) -> str | None:
        parts = []
        for item in self._strings.joined(tuple(items)):
            part = self._lexeme(item) if isinstance(item, str) else self._node(item)
            if part is None:
                return None
            parts.append(part)
        return " ".join(part for part in parts if part)

    def _alternatives(self, options: Iterable[Seq]) -> str | None:
        texts = [text for option in options if (text := self._node(option)) is not None]
        filled = list(dict.fromkeys(text for text in texts if text))
        if not filled:
            return "" if texts else None
        if len(filled) == 1 and len(filled) == len(texts):
            return filled[0]
        group = f"({' | '.join(filled)})"
        return group if all(texts) else f"{group}?"

    def _repetition(self, item: Node, least: int, most: int | None) -> str | None:
        text = self._node(item)
        if not text:
            return "" if least == 0 or text == "" else None
        return f"({text}){bounds(least, most)}"

    def _rule(self, name: str) -> str:
        if name not in self._numbers:
            self._numbers[name] = len(self._met)
            self._met.append(name)
        return f"r{self._numbers[name]}"

    def _lexeme(self, regex: str) -> str:
        return self._terminals.setdefault(regex, f"T{len(self._terminals)}")
