"""The bytes that a token stands for."""

from __future__ import annotations

import re

from mlxserver.models.tokenizer.vocabulary import BYTE, NORMAL, SPACE, SPECIAL, USER_DEFINED, Vocabulary


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each of the 256 bytes."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


_BYTE_OF = {letter: bytes([byte]) for byte, letter in enumerate(byte_letters())}


def token_piece(vocab: Vocabulary, token: int) -> bytes:
    """What llama.cpp shows for the token when special tokens are shown; unused tokens show nothing."""
    attr, text = vocab.attrs[token], vocab.texts[token]
    if attr & (SPECIAL | USER_DEFINED):
        return text.encode(errors="surrogateescape")
    if attr & NORMAL:
        if vocab.escape_spaces:
            return text.replace(SPACE, " ").encode(errors="surrogateescape")
        return _from_byte_letters(text)
    return bytes([vocab.byte_token_value(token)]) if attr & BYTE else b""


def _from_byte_letters(text: str) -> bytes:
    try:
        return b"".join(map(_BYTE_OF.__getitem__, text))
    except KeyError:
        whole = text.encode(errors="surrogateescape")
        return b"".join(_BYTE_OF.get(letter) or _unknown_byte(letter, whole) for letter in text)


def _unknown_byte(letter: str, whole: bytes) -> bytes:
    return b"[UNK_BYTE_0x%s%s]" % (letter.encode(errors="surrogateescape").hex().encode(), whole)


def clean_up_spaces(text: bytes) -> bytes:
    """Removes the spaces before punctuation and contractions, in the order of llama.cpp's three passes."""
    text = re.sub(rb" (?=[?!.,])", b"", text)
    text = text.replace(b" ' ", b"'")
    return re.sub(rb" (?='(?:s|m|re|ve))", b"", text)
