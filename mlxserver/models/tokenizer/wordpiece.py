"""BERT's tokenizer by llama.cpp's rules: words are cut, then covered from the left by the longest tokens.

Tokens that begin a word are spelled with a leading U+2581, the pieces within a word without.
"""

from __future__ import annotations

import unicodedata

from mlxserver.models.tokenizer.partition import SpecialTokens
from mlxserver.models.tokenizer.vocabulary import SPACE, Vocabulary

_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Blocks whose characters are words by themselves (with the gap that the Rust tokenizers have too)."""
_NO_SPACES = "\x1c\x1d\x1e\x1f"
"""Spaces for Python, not for Unicode."""
_DROPPED = ("Cc", "Cf", "Co", "Cs")
"""Control and format characters, and those without a meaning of their own."""


class WordPieceEncoder:
    """``unk_id`` stands for a word that cannot be covered; -1 leaves it out."""

    def __init__(
        self, vocab: Vocabulary, unk_id: int, lowercase: bool = True, strip_accents: bool = True
    ) -> None:
        self._ids = vocab.ids
        self._unknown = [unk_id] if unk_id >= 0 else []
        self._longest = max(map(len, vocab.texts), default=0)
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._special = SpecialTokens(vocab)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        for part in self._special.split(text, parse_special):
            if isinstance(part, int):
                tokens.append(part)
            else:
                for word in self._words(part):
                    tokens += self._cover(SPACE + word)
        return tokens

    def _words(self, text: str) -> list[str]:
        words = [""]
        for char in unicodedata.normalize("NFD", text) if self._strip_accents else text:
            kind = unicodedata.category(char)
            if char.isspace() and char not in _NO_SPACES:
                words.append("")
            elif char == "\ufffd" or kind in _DROPPED or (self._strip_accents and kind[0] == "M"):
                continue
            elif kind[0] == "P" or (char.isascii() and kind[0] == "S") or _is_chinese(char):
                words += [self._cased(char), ""]
            else:
                words[-1] += self._cased(char)
        return [word for word in words if word]

    def _cased(self, char: str) -> str:
        """A character that has no single one for its lower case stays as it is."""
        lower = char.lower() if self._lowercase else char
        return lower if len(lower) == 1 else char

    def _cover(self, word: str) -> list[int]:
        tokens: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    tokens.append(token)
                    start = end
                    break
            else:
                return self._unknown
        return tokens


def _is_chinese(char: str) -> bool:
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in _CHINESE)
