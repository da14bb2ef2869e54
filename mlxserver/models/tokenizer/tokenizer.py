"""The tokenizer that the rest of the server sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mlxserver.models.tokenizer.pieces import clean_up_spaces, token_piece
from mlxserver.models.tokenizer.vocabulary import SPECIAL, Vocabulary


class TextEncoder(Protocol):
    def encode(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        ...


class VocabTokenizer:
    """A vocabulary and an encoder together: :class:`mlxserver.models.model.Tokenizer`.

    A lone surrogate in a text counts as U+FFFD. Safe to use from several threads."""

    def __init__(self, vocab: Vocabulary, encoder: TextEncoder) -> None:
        self._vocab = vocab
        self._encoder = encoder
        self._pieces: list[bytes | None] = [None] * len(vocab)
        self.n_vocab = len(vocab)
        self.bos_id = vocab.bos_id
        self.eos_id = vocab.eos_id
        self.add_bos = vocab.add_bos
        self.add_eos = vocab.add_eos
        self.sep_id = vocab.sep_id
        self.add_sep = vocab.add_sep
        closing_id = vocab.eos_id if vocab.add_eos else -1
        self._closing_id = vocab.sep_id if vocab.ends_with_sep else closing_id
        self.eog_ids = frozenset(vocab.eog_ids)
        self.fim_pre = vocab.fim_pre
        self.fim_suf = vocab.fim_suf
        self.fim_mid = vocab.fim_mid
        self.fim_rep = vocab.fim_rep
        self.fim_sep = vocab.fim_sep

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        tokens = self._encoder.encode(_well_formed(text), parse_special)
        if add_special and self.add_bos and self.bos_id >= 0:
            tokens.insert(0, self.bos_id)
        if add_special and self._closing_id >= 0:
            tokens.append(self._closing_id)
        return tokens

    def piece(self, token: int, special: bool = True) -> bytes:
        if not special and self.is_special(token):
            return b""
        self._check(token)
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = token_piece(self._vocab, token)
        return piece

    def decode(self, tokens: Sequence[int], special: bool = True) -> bytes:
        pieces = [self.piece(token, special) for token in tokens]
        if pieces and self._vocab.add_space_prefix:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        return clean_up_spaces(text) if self._vocab.clean_spaces else text

    def is_special(self, token: int) -> bool:
        self._check(token)
        return bool(self._vocab.attrs[token] & SPECIAL)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            # The wording is what llama-server's clients get; it reads a negative id as unsigned.
            n, size = token % 2**64, self.n_vocab
            raise IndexError(f"vector::_M_range_check: __n (which is {n}) >= this->size() (which is {size})")


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
