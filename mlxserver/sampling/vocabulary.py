"""What the samplers need to know of the tokens' texts."""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    n_vocab: int
    bos_id: int
    eos_id: int
    eog_ids: frozenset[int]

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]: ...

    def piece(self, token: int, special: bool = True) -> bytes: ...

    def is_special(self, token: int) -> bool: ...


class Pieces:
    """Every token's bytes, read from the vocabulary when first needed.

    Logits may be wider than the vocabulary: what lies beyond has no text.
    """

    def __init__(self, n_vocab: int, vocabulary: Vocabulary) -> None:
        self._n_vocab = n_vocab
        self._vocabulary = vocabulary
        self._all: list[bytes] | None = None

    def all(self) -> list[bytes]:
        if self._all is None:
            known = min(self._n_vocab, self._vocabulary.n_vocab)
            self._all = [self._vocabulary.piece(token) for token in range(known)]
            self._all += [b""] * (self._n_vocab - known)
        return self._all

    def encode(self, text: bytes) -> list[int]:
        return self._vocabulary.encode(text.decode("utf-8", "replace"), parse_special=False)
