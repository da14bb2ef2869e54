"""Left recursion, which llama.cpp refuses, and rules from which no text can come."""

from __future__ import annotations

from collections.abc import Callable

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


def check_left_recursion(rules: Rules) -> None:
    """Raises GrammarError."""
    empty = _nullable(rules)
    leftmost = {name: _leftmost(rule, rules, empty) for name, rule in rules.items()}
    done: set[str] = set()
    for start in rules:
        _search(start, leftmost, done)
    for rule in rules.values():
        _check_repetitions(rule, rules)


def productive(rules: Rules) -> frozenset[str]:
    """The rules that some finite text fits."""
    return frozenset(_closure(rules, _ends))


def _search(start: str, leftmost: dict[str, list[str]], done: set[str]) -> None:
    path = [(start, iter(leftmost[start]))]
    active = {start}
    while path:
        name, names = path[-1]
        following = next(names, None)
        if following is None:
            path.pop()
            active.discard(name)
            done.add(name)
        elif following in active:
            raise GrammarError(f"rule '{following}' is left recursive")
        elif following not in done:
            path.append((following, iter(leftmost[following])))
            active.add(following)


def _nullable(rules: Rules) -> set[str]:
    return _closure(rules, _may_be_empty)


def _closure(rules: Rules, holds: Callable[[Node, set[str]], bool]) -> set[str]:
    """The rules for which something holds that depends on for which others it does."""
    found: set[str] = set()
    names, n_before = list(rules), -1
    while len(found) > n_before:
        n_before = len(found)
        for name in names:
            if name not in found and holds(rules[name], found):
                found.add(name)
        # chains of rules run one way or the other
        names.reverse()
    return found


def _may_be_empty(node: Node, empty: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in empty
        case Seq(items):
            return all(_may_be_empty(item, empty) for item in items)
        case Alt(options):
            return any(_may_be_empty(option, empty) for option in options)
        case Repeat(item, least, _):
            return least == 0 or _may_be_empty(item, empty)
    return False


def _leftmost(node: Node, rules: Rules, empty: set[str]) -> list[str]:
    """The rules that the first character of a text of ``node`` can come from."""
    match node:
        case Ref(name):
            return [name]
        case Alt(options):
            return [name for option in options for name in _leftmost(option, rules, empty)]
        case Repeat(item, _, _):
            return _leftmost(item, rules, empty)
        case Seq(items):
            names: list[str] = []
            for item in items:
                names += _leftmost(item, rules, empty)
                if not _may_be_empty(item, empty):
                    break
            return names
    return []


def _check_repetitions(node: Node, rules: Rules) -> None:
    """llama.cpp reads ``x*`` as a rule ``xs ::= x xs |``: left recursive where x has an empty alternative."""
    match node:
        case Seq(items) | Alt(items):
            for item in items:
                _check_repetitions(item, rules)
        case Repeat(item, _, most):
            if most is None and _has_empty_option(item, rules):
                raise GrammarError("what may be empty is repeated without a bound")
            _check_repetitions(item, rules)


def _has_empty_option(node: Node, rules: Rules) -> bool:
    match node:
        case Ref(name):
            return _has_empty_option(rules[name], rules)
        case Alt(options):
            return any(not option.items for option in options)
        case Repeat(_, least, _):
            return least == 0
    return False


def _ends(node: Node, known: set[str]) -> bool:
    match node:
        case Chars(ranges):
            return bool(ranges)
        case Token() | Json():
            return True
        case Ref(name):
            return name in known
        case Seq(items):
            return all(_ends(item, known) for item in items)
        case Alt(options):
            return any(_ends(option, known) for option in options)
        case Repeat(item, least, _):
            return least == 0 or _ends(item, known)
