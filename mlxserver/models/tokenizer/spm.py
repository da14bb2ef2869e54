"""SentencePiece byte-pair encoding: any two neighbours merge that make a token, best score first."""

from __future__ import annotations

import tokenizers
from tokenizers import models

from mlxserver.models.tokenizer.backend import Backend
from mlxserver.models.tokenizer.partition import SpecialTokens
from mlxserver.models.tokenizer.vocabulary import BYTE, SPACE, USER_DEFINED, Vocabulary


class SpmEncoder:
    """Where the vocabulary wants it, text at the start or after a special token is given a leading space."""

    def __init__(self, vocab: Vocabulary) -> None:
        backend = Backend(vocab, self._byte_tokens)
        merges = _merges(vocab, backend)
        self._encode = backend.encoder(
            tokenizers.Tokenizer(models.BPE(backend.symbols, merges, byte_fallback=True))
        )
        self._special = SpecialTokens(vocab)
        self._prefix = SPACE if vocab.add_space_prefix else ""

    def encode(self, text: str, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        prefix = self._prefix
        for part in self._special.split(text, parse_special):
            if isinstance(part, int):
                tokens.append(part)
                prefix = self._prefix
            else:
                tokens += self._encode(prefix + part.replace(" ", SPACE))
                prefix = ""
        return tokens

    @staticmethod
    def _byte_tokens(vocab: Vocabulary, symbol: str) -> list[int]:
        return [token for byte in symbol.encode() if (token := vocab.byte_token(byte)) >= 0]


def _merges(vocab: Vocabulary, backend: Backend) -> list[tuple[str, str]]:
    """Every way to cut a token in two, best token first.

    User-defined tokens never come out of a merge, for they are cut out of the text before. llama.cpp takes
    the leftmost of the places where the same token can be made; here a longer left part goes first, which
    is the same unless such places overlap and are cut differently (as "aaa" can be in [a][aa][a]).
    """
    scores, attrs, texts = vocab.scores, vocab.attrs, vocab.texts
    made = [
        token
        for token, text in enumerate(texts)
        if len(text) > 1 and not attrs[token] & USER_DEFINED and vocab.is_encodable(token)
    ]
    made.sort(key=lambda token: -scores[token])
    backend.add_symbols(sorted(set("".join(texts[token] for token in made))))
    is_byte = [bool(attr & BYTE) for attr in attrs]
    parts = {text for text, token in backend.symbols.items() if token >= len(vocab) or not is_byte[token]}
    return [
        (left, right)
        for text in (texts[token] for token in made)
        for cut in range(len(text) - 1, 0, -1)
        if (right := text[cut:]) in parts and (left := text[:cut]) in parts
    ]
