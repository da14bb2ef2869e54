"""The tokens of a model: texts, attributes, scores and the ids that mean something."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# Attributes of a token; llama.cpp lets a token have several.
UNKNOWN = 1
UNUSED = 2
NORMAL = 4
CONTROL = 8
USER_DEFINED = 16
BYTE = 32
RSTRIP = 64

SPECIAL = CONTROL | UNKNOWN
"""Not shown unless asked for, and only parsed with ``parse_special``."""

TOKEN_TYPES = (0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)
"""Attribute by the number in ``tokenizer.ggml.token_type`` (which is also SentencePiece's)."""

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""


@dataclass(slots=True)
class Vocabulary:
    """``texts``, ``attrs`` and ``scores`` have one entry a token. A missing id is -1.

    A text that is not valid UTF-8 carries its bytes as surrogate escapes.
    """

    texts: list[str]
    attrs: list[int]
    scores: Sequence[float] = ()
    bos_id: int = -1
    eos_id: int = -1
    sep_id: int = -1
    eot_id: int = -1
    eom_id: int = -1
    fim_pre: int = -1
    fim_suf: int = -1
    fim_mid: int = -1
    fim_pad: int = -1
    fim_rep: int = -1
    fim_sep: int = -1
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    ends_with_sep: bool = False
    """Special tokens around a text end with the separator, not with EOS."""
    add_space_prefix: bool = False
    escape_spaces: bool = False
    """Spaces are written as U+2581 in the texts of normal tokens; else these are byte-level."""
    clean_spaces: bool = False
    eog_ids: set[int] = field(default_factory=set)
    ids: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ids = {text: token for token, text in enumerate(self.texts)}

    def __len__(self) -> int:
        return len(self.texts)

    def byte_token(self, byte: int) -> int:
        """The token of one raw byte (``<0x0A>``), or -1."""
        return self.ids.get(f"<0x{byte:02X}>", -1)

    def byte_token_value(self, token: int) -> int:
        """The byte that a ``<0x0A>`` token stands for, or -1 if its text is not of that form."""
        match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", self.texts[token])
        return int(match[1], 16) if match else -1

    def is_encodable(self, token: int) -> bool:
        """Whether the token's text is valid UTF-8, so that some input can contain it."""
        text = self.texts[token]
        return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
