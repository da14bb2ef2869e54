"""What the samplers need to know of the tokens' texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import accumulate
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
    """Every token's bytes, read from the vocabulary when first needed, and indexes over them.

    Logits may be wider than the vocabulary: what lies beyond has no text.
    """

    def __init__(self, n_vocab: int, vocabulary: Vocabulary) -> None:
        self._n_vocab = n_vocab
        self._vocabulary = vocabulary

    def all(self) -> list[bytes]:
        return self._all

    def holding(self, text: bytes) -> list[int]:
        """The tokens that ``text`` (not empty) is in."""
        joined, ends = self._joined
        found: list[int] = []
        at = joined.find(text)
        while at >= 0:
            token = bisect_right(ends, at)
            if at + len(text) <= ends[token]:
                found.append(token)
                at = ends[token] - 1
            at = joined.find(text, at + 1)
        return found

    def ending_with(self, text: bytes) -> list[int]:
        """The tokens that end with ``text`` (not empty)."""
        backwards, tokens = self._backwards
        wanted = text[::-1]
        start = bisect_left(backwards, wanted)
        end = bisect_right(backwards, wanted, start, key=lambda piece: piece[: len(wanted)])
        return tokens[start:end]

    def encode(self, text: bytes) -> list[int]:
        return self._vocabulary.encode(text.decode("utf-8", "replace"), parse_special=False)

    @cached_property
    def _all(self) -> list[bytes]:
        known = min(self._n_vocab, self._vocabulary.n_vocab)
        pieces = [self._vocabulary.piece(token) for token in range(known)]
        return pieces + [b""] * (self._n_vocab - known)

    @cached_property
    def _joined(self) -> tuple[bytes, list[int]]:
        """All pieces one after another, and where each ends."""
        return b"".join(self._all), list(accumulate(map(len, self._all)))

    @cached_property
    def _backwards(self) -> tuple[list[bytes], list[int]]:
        """The pieces read from their ends, in order, and whose they are."""
        pairs = sorted((piece[::-1], token) for token, piece in enumerate(self._all))
        return [piece for piece, _ in pairs], [token for _, token in pairs]
