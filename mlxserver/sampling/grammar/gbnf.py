"""llama.cpp's grammar notation (GBNF): text → rules. Raises GrammarError where llama.cpp's parser refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import hexdigits

from mlxserver.sampling.grammar.nodes import (
    Alt,
    Chars,
    GrammarError,
    Node,
    Ref,
    Repeat,
    Rules,
    Seq,
    Token,
    any_char,
    clean,
    complement,
)

TokenId = Callable[[str], int | None]
"""The token whose text is exactly this one; None where it is several or none."""

MAX_REPETITIONS = 2000
MAX_DEPTH = 200
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_INTEGER = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"<\[([0-9]+)\]>|<(?!\[)[^>]*>")
_BOUNDS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str, token_id: TokenId, given: Rules | None = None) -> Rules:
    """The rules by name, ``root`` among them; every name is defined. The later of two of one name counts.

    ``given`` rules may be named in the text.
    """
    try:
        rules = _Parser(text.partition("\0")[0], token_id).rules(given or {})
    except RecursionError:
        raise GrammarError("the grammar is nested too deeply") from None
    if "root" not in rules:
        raise GrammarError("there is no rule 'root'")
    return rules


class _Parser:
    def __init__(self, text: str, token_id: TokenId) -> None:
        self._text = text
        self._token_id = token_id
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()
        self._n_symbols = 0
        """As llama.cpp counts them: names, groups and the helpers of repetitions; they bound repetitions."""

    def rules(self, given: Rules) -> Rules:
        rules: dict[str, Alt] = dict(given)
        self._skip(_SPACE_AND_LINES)
        while self._peek():
            name, alternatives = self._rule()
            rules[name] = alternatives
        for name in self._names:
            if name not in rules:
                raise GrammarError(f"undefined rule '{name}'")
        return rules

    def _rule(self) -> tuple[str, Alt]:
        name = self._name()
        self._skip(_SPACE)
        if not self._take("::="):
            raise self._expected("::=")
        self._skip(_SPACE_AND_LINES)
        alternatives = self._alternatives(nested=False)
        if not (self._take("\r\n") or self._take("\r") or self._take("\n")) and self._peek():
            raise self._expected("newline or end")
        self._skip(_SPACE_AND_LINES)
        return name, alternatives

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._expected("name")
        self._at = match.end()
        if match[0] not in self._names:
            self._names.add(match[0])
            self._n_symbols += 1
        return match[0]

    def _alternatives(self, nested: bool) -> Alt:
        choices = [self._sequence(nested)]
        while self._take("|"):
            self._skip(_SPACE_AND_LINES)
            choices.append(self._sequence(nested))
        return Alt(tuple(choices))

    def _sequence(self, nested: bool) -> Seq:
        items: list[Node] = []
        last: Node | None = None
        weight = 1
        while True:
            if (bounds := self._bounds(nested)) is not None:
                if last is None:
                    raise self._expected("an item before a repetition")
                items[-1], weight = self._repeat(last, bounds, weight)
                last = None if items[-1] == Seq() else items[-1]
                continue
            before = self._n_symbols
            item = self._item(nested)
            if item is None:
                return Seq(tuple(item for item in items if item != Seq()))
            # an empty literal or class is no item: nothing can repeat it
            last = None if item == Seq() else item
            items.append(item)
            weight = max(1, self._n_symbols - before) if isinstance(item, Alt) else 1

    def _item(self, nested: bool) -> Node | None:
        item: Node
        char = self._peek()
        if char == '"':
            item = self._literal()
        elif char == "[":
            item = self._class()
        elif char in ("<", "!"):
            item = self._token()
        elif char == "(":
            item = self._group()
        elif char == ".":
            self._at += 1
            item = any_char()
        elif _NAME.match(char):
            item = Ref(self._name())
        else:
            return None
        self._skip(_SPACE_AND_LINES if nested else _SPACE)
        return item

    def _group(self) -> Alt:
        self._at += 1
        self._depth += 1
        self._n_symbols += 1
        if self._depth > MAX_DEPTH:
            raise GrammarError("groups are nested too deeply")
        self._skip(_SPACE_AND_LINES)
        group = self._alternatives(nested=True)
        if not self._take(")"):
            raise self._expected("')'")
        self._depth -= 1
        return group

    def _literal(self) -> Node:
        self._at += 1
        items = []
        while not self._take('"'):
            code = self._char()
            items.append(Chars(clean([(code, code)])))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _class(self) -> Node:
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = self._char()
            high = low
            if self._peek() == "-" and self._peek(1) != "]":
                self._at += 1
                high = self._char()
            ranges.append((low, high))
        if not ranges:
            return Seq()
        return Chars(complement(ranges) if negated else clean(ranges))

    def _char(self) -> int:
        char = self._peek()
        if not char:
            raise GrammarError("unexpected end of input")
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        if kind not in _HEX_DIGITS or not kind:
            raise self._expected("a known escape")
        digits = self._text[self._at : self._at + _HEX_DIGITS[kind]]
        if len(digits) != _HEX_DIGITS[kind] or not set(digits) <= set(hexdigits):
            raise self._expected(f"{_HEX_DIGITS[kind]} hex digits")
        self._at += len(digits)
        return int(digits, 16)

    def _token(self) -> Token:
        negated = self._take("!")
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._expected("a token")
        self._at = match.end()
        token = int(match[1]) if match[1] else self._token_id(match[0])
        if token is None:
            raise GrammarError(f"invalid token '{match[0]}'")
        return Token(token, negated)

    def _bounds(self, nested: bool) -> tuple[int, int | None] | None:
        """The repetition that stands here, if one does."""
        space = _SPACE_AND_LINES if nested else _SPACE
        char = self._peek()
        if char in _BOUNDS:
            self._at += 1
            self._skip(space)
            return _BOUNDS[char]
        if char != "{":
            return None
        self._at += 1
        self._skip(space)
        least = self._integer()
        self._skip(space)
        most: int | None = least
        if self._take(","):
            self._skip(space)
            most = self._integer() if _INTEGER.match(self._peek()) else None
            self._skip(space)
        if not self._take("}"):
            raise self._expected("'}'")
        self._skip(space)
        return least, most

    def _repeat(self, item: Node, bounds: tuple[int, int | None], weight: int) -> tuple[Node, int]:
        """The repeated item and its new weight: how many of llama.cpp's rules it amounts to."""
        least, most = bounds
        if least > MAX_REPETITIONS:
            raise GrammarError("too many repetitions")
        if most is not None and most < least:
            raise GrammarError(f"a repetition of at least {least} and at most {most}")
        if most is not None and most > MAX_REPETITIONS:
            most = None
        weight *= most or least or 1
        if weight >= MAX_REPETITIONS:
            raise GrammarError("too many repetitions of repetitions")
        self._n_symbols += 1 if most is None else most - least
        return (Seq() if most == 0 else Repeat(item, least, most)), weight

    def _integer(self) -> int:
        match = _INTEGER.match(self._text, self._at)
        if match is None or len(match[0]) > 18:
            raise self._expected("an integer")
        self._at = match.end()
        return int(match[0])

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _expected(self, what: str) -> GrammarError:
        return GrammarError(f"expecting {what} at {self._text[self._at : self._at + 40]!r}")
