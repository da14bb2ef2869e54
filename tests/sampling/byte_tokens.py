"""A vocabulary of single bytes and a few longer texts: every text has a spelling, and masks are quick."""

from __future__ import annotations

LONGER = ('": ', '", "', "true", "false", "null", '"}', "é", "\n  ", "<call>", "ab")


class ByteTokens:
    """Tokens 0 to 255 are bytes, 256 ends an answer, 257 is a control token, the others are ``LONGER``."""

    bos_id = -1
    eos_id = 256
    eog_ids = frozenset({256})

    def __init__(self) -> None:
        self.texts = [bytes([byte]) for byte in range(256)] + [b"</s>", b"<ctl>"]
        self.texts += [text.encode() for text in LONGER]
        self.n_vocab = len(self.texts)

    def piece(self, token: int, special: bool = True) -> bytes:
        return self.texts[token]

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        if parse_special and text.encode() in self.texts:
            return [self.texts.index(text.encode())]
        return list(text.encode())

    def is_special(self, token: int) -> bool:
        return token in (256, 257)
