"""SentencePiece's unigram model: of all ways to cover a text with tokens the one with the best sum of scores.

Multilingual encoders (XLM-RoBERTa) have it; a GGUF file calls it ``t5``.
"""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers

from mlxserver.models.tokenizer.backend import token_ids
from mlxserver.models.tokenizer.partition import SpecialTokens
from mlxserver.models.tokenizer.vocabulary import NORMAL, SPACE, UNUSED, USER_DEFINED, Vocabulary


class UnigramEncoder:
    """``charsmap``: SentencePiece's compiled normalisation, or empty. ``merges_spaces``: as one."""

    def __init__(
        self, vocab: Vocabulary, unk_id: int, charsmap: bytes = b"", merges_spaces: bool = False
    ) -> None:
        pieces = [
            (text if attr & (NORMAL | USER_DEFINED | UNUSED) else f"\0{token}", float(score))
            for token, (text, attr, score) in enumerate(
                zip(vocab.texts, vocab.attrs, vocab.scores, strict=False)
            )
        ]
        self._engine = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, byte_fallback=False))
        self._normalizer = normalizers.Precompiled(charsmap) if charsmap else None
        self._merges_spaces = merges_spaces
        self._prefix = SPACE if vocab.add_space_prefix else ""
        self._special = SpecialTokens(vocab)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        tokens: list[int] = []
        for part in self._special.split(text, parse_special):
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += token_ids(self._engine, self._spelled(part))
        return tokens

    def _spelled(self, text: str) -> str:
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self._merges_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        first = len(text) - len(text.lstrip(" "))
        prefix = self._prefix if first < len(text) else ""
        return text[:first].replace(" ", SPACE) + prefix + text[first:].replace(" ", SPACE)
