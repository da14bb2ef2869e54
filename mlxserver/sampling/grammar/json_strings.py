"""Finds the JSON strings of a grammar, which may be read as single lexemes.

No JSON string is the beginning of another one. So a lexer that takes the longest lexeme finds all that a
reader of characters finds, provided that no other lexeme has a quotation mark.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlxserver.sampling.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Token
from mlxserver.sampling.grammar.regex import Regular

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_START, _INSIDE, _ESCAPED, _DONE, _WRONG = range(5)
_MAX_LENGTH = 20_000

States = frozenset[int]


class JsonStrings:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._regular = Regular(rules, _MAX_LENGTH)
        self._known: dict[tuple[str, States], States] = {}
        self._is_on = True
        self._is_on = not self._has_stray_quote()

    def joined(self, items: tuple[Node, ...]) -> Iterator[Node | str]:
        """The items of a sequence, with a regular expression for those that make up a JSON string."""
        at = 0
        while at < len(items):
            end = self._end(items, at) if self._is_on else 0
            if end:
                yield self._regular.text(Seq(items[at:end]))
                at = end
            else:
                yield items[at]
                at += 1

    def _end(self, items: tuple[Node, ...], at: int) -> int:
        """Where the string that begins at ``at`` ends; 0 where none does."""
        states: States = frozenset({_START})
        for end in range(at, len(items)):
            if self._regular.length(items[end]) is None:
                return 0
            states = self._after(items[end], states)
            if states == {_DONE}:
                return end + 1 if self._regular.length(Seq(items[at : end + 1])) is not None else 0
            if _WRONG in states or _DONE in states:
                return 0
        return 0

    def _after(self, node: Node, states: States) -> States:
        """Where a reader of a JSON string can be after the node's texts."""
        match node:
            case Chars(ranges):
                return frozenset(after for state in states for after in _step(state, ranges))
            case Ref(name):
                key = (name, states)
                if key not in self._known:
                    self._known[key] = self._after(self._rules[name], states)
                return self._known[key]
            case Seq(items):
                for item in items:
                    states = self._after(item, states)
                return states
            case Alt(options):
                return frozenset().union(*(self._after(option, states) for option in options))
            case Repeat(item, least, most):
                return self._after_repeat(item, least, most, states)
        raise TypeError(node)

    def _after_repeat(self, item: Node, least: int, most: int | None, states: States) -> States:
        for _ in range(least):
            states = self._after(item, states)
        found, count = states, least
        while most is None or count < most:
            states = self._after(item, states)
            if states <= found:
                break
            found |= states
            count += 1
        return found

    def _has_stray_quote(self) -> bool:
        """Whether a quotation mark can be met outside of the strings."""
        seen, waiting = {"root"}, ["root"]
        while waiting:
            nodes: list[Node] = [self._rules[waiting.pop()]]
            while nodes:
                node = nodes.pop()
                match node:
                    case Chars(ranges) if any(low <= _QUOTE <= high for low, high in ranges):
                        return True
                    case Token():
                        return True
                    case Ref(name) if name in self._rules and name not in seen:
                        seen.add(name)
                        waiting.append(name)
                    case Alt(options):
                        nodes += options
                    case Repeat(item, _, _):
                        nodes.append(item)
                    case Seq(items):
                        nodes += (part for part in self.joined(items) if not isinstance(part, str))
        return False


def _step(state: int, ranges: tuple[tuple[int, int], ...]) -> Iterator[int]:
    quote = any(low <= _QUOTE <= high for low, high in ranges)
    backslash = any(low <= _BACKSLASH <= high for low, high in ranges)
    other = sum(high - low + 1 for low, high in ranges) > quote + backslash
    if quote:
        yield {_START: _INSIDE, _INSIDE: _DONE, _ESCAPED: _INSIDE}.get(state, _WRONG)
    if backslash:
        yield {_INSIDE: _ESCAPED, _ESCAPED: _INSIDE}.get(state, _WRONG)
    if other:
        yield _INSIDE if state in (_INSIDE, _ESCAPED) else _WRONG
