"""A made-up vocabulary: short texts over a few letters, so that prefixes and breakers occur."""

from __future__ import annotations

from itertools import product

LETTERS = "ab:\n"


class MadeUp:
    """Token 0 is EOS; then every text of 1, 2, 3, ... letters in order."""

    bos_id = -1
    eos_id = 0
    eog_ids = frozenset({0, 5})

    def __init__(self, n_vocab: int) -> None:
        texts = [b"</s>"]
        for length in range(1, 9):
            if len(texts) >= n_vocab:
                break
            texts += ["".join(letters).encode() for letters in product(LETTERS, repeat=length)]
        self.texts = texts[:n_vocab]
        self.n_vocab = n_vocab

    def piece(self, token: int, special: bool = True) -> bytes:
        return self.texts[token]

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [1 + LETTERS.index(letter) if letter in LETTERS else 0 for letter in text]
