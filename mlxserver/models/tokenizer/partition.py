"""Cuts a text at the special tokens that it contains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from mlxserver.models.tokenizer.vocabulary import RSTRIP, SPECIAL, USER_DEFINED, Vocabulary

_WHITESPACE = " \t\n\v\f\r"
_PREFIX_LEN = 3


class _Special(NamedTuple):
    order: int
    token: int
    text: str
    rstrip: bool


class SpecialTokens:
    """Longer tokens are cut out of the whole text before shorter ones, as llama.cpp does."""

    def __init__(self, vocab: Vocabulary) -> None:
        tokens = [
            token
            for token, attr in enumerate(vocab.attrs)
            if attr & (SPECIAL | USER_DEFINED) and vocab.is_encodable(token)
        ]
        tokens.sort(key=lambda token: -len(vocab.texts[token].encode()))
        specials = [
            _Special(order, token, vocab.texts[token], bool(vocab.attrs[token] & RSTRIP))
            for order, token in enumerate(tokens)
        ]
        self._all = _by_prefix(specials)
        self._user_defined = _by_prefix([s for s in specials if not vocab.attrs[s.token] & SPECIAL])

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Texts between special tokens, and the ids of these, in order.

        Without ``parse_special`` only user-defined tokens count."""
        fragments: list[str | int] = [text] if text else []
        for special in _present(text, self._all if parse_special else self._user_defined):
            fragments = [part for fragment in fragments for part in _cut(fragment, special)]
        return fragments


def _by_prefix(specials: list[_Special]) -> dict[str, list[_Special]]:
    groups: dict[str, list[_Special]] = defaultdict(list)
    for special in specials:
        groups[special.text[:_PREFIX_LEN]].append(special)
    return dict(groups)


def _present(text: str, groups: dict[str, list[_Special]]) -> list[_Special]:
    # Thousands of tokens may share a prefix (<unused0> ...): one search rules them all out.
    return sorted(
        special
        for prefix, group in groups.items()
        if prefix in text
        for special in group
        if special.text in text
    )


def _cut(fragment: str | int, special: _Special) -> Iterator[str | int]:
    if isinstance(fragment, int):
        yield fragment
        return
    first, *others = fragment.split(special.text)
    if first:
        yield first
    for part in others:
        yield special.token
        if rest := part.lstrip(_WHITESPACE) if special.rstrip else part:
            yield rest
