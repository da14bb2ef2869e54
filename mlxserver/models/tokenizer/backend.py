"""The tokenizers library, with symbols beyond the vocabulary.

llama.cpp merges strings, not ids: a merge may start from, or end in, a symbol that is no token, and what
is left of such symbols is written as bytes. The library knows only ids, so such symbols get ids above the
vocabulary's, which are replaced after encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tokenizers

from mlxserver.models.tokenizer.vocabulary import Vocabulary

LONG = 4096
"""Characters of a text that takes so long that other threads are to work meanwhile."""


class Backend:
    """``expand`` gives the tokens of a symbol that is no token."""

    def __init__(self, vocab: Vocabulary, expand: Callable[[Vocabulary, str], list[int]]) -> None:
        self._vocab = vocab
        self._expand = expand
        self.symbols = {text: token for text, token in vocab.ids.items() if vocab.is_encodable(token)}
        self._expanded: list[list[int]] = []

    def add_symbols(self, symbols: Iterable[str]) -> None:
        for symbol in symbols:
            if symbol not in self.symbols:
                self.symbols[symbol] = len(self._vocab) + len(self._expanded)
                self._expanded.append(self._expand(self._vocab, symbol))

    def encoder(self, engine: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
        n_vocab, expanded = len(self._vocab), self._expanded

        def encode(text: str) -> list[int]:
            tokens = token_ids(engine, text)
            if not expanded or max(tokens, default=0) < n_vocab:
                return tokens
            return [
                real
                for token in tokens
                for real in ((token,) if token < n_vocab else expanded[token - n_vocab])
            ]

        return encode


def token_ids(engine: tokenizers.Tokenizer, text: str) -> list[int]:
    """The ids alone; other threads run while those of a long text are made."""
    ids: list[int]
    if len(text) < LONG:
        ids = engine.encode(text, add_special_tokens=False).ids
    else:  # of the library's functions those for several texts alone let other threads run
        ids = engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
