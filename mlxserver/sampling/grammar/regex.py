"""Parts of a grammar as regular expressions (the syntax of Rust's regex crate)."""

from __future__ import annotations

from mlxserver.sampling.grammar.nodes import Alt, Chars, Node, Ranges, Ref, Repeat, Rules, Seq

_MAX_DEPTH = 30


class Regular:
    """The rules that lead neither deep nor back to themselves, name no tokens and stay short in full."""

    def __init__(self, rules: Rules, max_length: int) -> None:
        self._rules = rules
        self._max_length = max_length
        self._lengths: dict[str, int | None] = {}
        """None: not regular, or (while it is being measured) met again."""
        self._texts: dict[str, str] = {}
        self._depth = 0

    def length(self, node: Node) -> int | None:
        """About how long the node's regular expression is; None where it has none."""
        match node:
            case Chars(ranges):
                return len(char_class(ranges)) if ranges else None
            case Ref(name):
                return self._length_of(name)
            case Seq(items) | Alt(items):
                return self._total(items)
            case Repeat(item, _, _):
                length = self.length(item)
                return None if length is None else length + 12
        return None

    def text(self, node: Node) -> str:
        """The regular expression of a node that has a length."""
        match node:
            case Chars(ranges):
                return char_class(ranges)
            case Ref(name):
                if name not in self._texts:
                    self._texts[name] = self.text(self._rules[name])
                return self._texts[name]
            case Seq(items):
                return "".join(map(self.text, items))
            case Alt(options):
                return f"(?:{'|'.join(map(self.text, options))})"
            case Repeat(item, least, most):
                return f"(?:{self.text(item)}){bounds(least, most)}"
        raise TypeError(node)

    def _length_of(self, name: str) -> int | None:
        if name not in self._lengths:
            self._lengths[name] = None
            self._depth += 1
            if name in self._rules and self._depth < _MAX_DEPTH:
                self._lengths[name] = self.length(self._rules[name])
            self._depth -= 1
        return self._lengths[name]

    def _total(self, items: tuple[Node, ...]) -> int | None:
        total = 4
        for item in items:
            length = self.length(item)
            if length is None or total + length > self._max_length:
                return None
            total += length + 1
        return total


def bounds(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((least, most))
    if short is not None:
        return short
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def char_class(ranges: Ranges) -> str:
    """Matches one character of ``ranges``."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    return (
        f"[{''.join(_code(low) if low == high else f'{_code(low)}-{_code(high)}' for low, high in ranges)}]"
    )


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"
