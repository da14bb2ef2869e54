"""Byte-pair encoding with ranked merges, words cut by a pre-tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tokenizers
from tokenizers import models

from mlxserver.models.tokenizer.backend import Backend
from mlxserver.models.tokenizer.partition import SpecialTokens
from mlxserver.models.tokenizer.pieces import byte_letters
from mlxserver.models.tokenizer.pretokenizer import PreTokenizer
from mlxserver.models.tokenizer.vocabulary import SPACE, Vocabulary

_NEWLINES = re.compile(r"(\n+)")


class BpeEncoder:
    """``merges`` are "left right" in order of rank, as in ``tokenizer.ggml.merges``."""

    def __init__(self, vocab: Vocabulary, merges: Iterable[str], pre: PreTokenizer) -> None:
        pairs = dict.fromkeys(map(_pair, merges))
        pairs.pop(("", ""), None)
        backend = Backend(vocab, self._letter_tokens if pre.byte_level else self._raw_tokens)
        if pre.byte_level:
            backend.add_symbols(byte_letters())
        for left, right in pairs:
            backend.add_symbols((left, right, left + right))
        model = models.BPE(
            backend.symbols, list(pairs), ignore_merges=pre.ignore_merges, byte_fallback=not pre.byte_level
        )
        engine = tokenizers.Tokenizer(model)
        engine.pre_tokenizer = pre.build()
        self._encode = backend.encoder(engine)
        self._vocab = vocab
        self._pre = pre
        self._special = SpecialTokens(vocab)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        for part in self._special.split(text, parse_special):
            tokens += [part] if isinstance(part, int) else self._encode_part(part)
        return tokens

    def _encode_part(self, text: str) -> list[int]:
        if self._vocab.escape_spaces:
            text = text.replace(" ", SPACE)
        if not self._pre.whole_newlines:
            return self._encode(text)
        tokens: list[int] = []
        for line in _NEWLINES.split(text):
            whole = self._vocab.ids.get(line, -1) if line.startswith("\n") else -1
            tokens += [whole] if whole >= 0 else self._encode(line)
        return tokens

    @staticmethod
    def _letter_tokens(vocab: Vocabulary, symbol: str) -> list[int]:
        return [vocab.ids[chr(byte)] for byte in symbol.encode() if byte < 0x80 and chr(byte) in vocab.ids]

    @staticmethod
    def _raw_tokens(vocab: Vocabulary, symbol: str) -> list[int]:
        return [token for byte in symbol.encode() if (token := vocab.byte_token(byte)) >= 0]


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    return (merge[:cut], merge[cut + 1 :]) if cut > 0 else ("", "")
