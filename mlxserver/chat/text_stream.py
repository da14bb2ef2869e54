"""Tokens to text: what may be sent now, and whether the text ends the completion.

Works on bytes, as a token may end inside a character. Nothing is sent while the last character is
incomplete or while the end of the text may become a stop string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlxserver.models.model import Tokenizer

StopType = Literal["none", "eos", "word", "limit"]


@dataclass(frozen=True, slots=True)
class TextRules:
    """When text ends a completion, and which special tokens are shown."""

    stop: tuple[str, ...] = ()
    n_indent: int = 0
    """Lines after the first end the completion unless indented by this many blanks."""
    t_max_predict_ms: int = -1
    """A new line after this time ends the completion."""
    show_special: bool = False
    preserved_tokens: frozenset[int] = frozenset()
    """Special tokens that are shown in any case."""


class TextStream:
    """The text of one completion. ``stop_type`` leaves ``none`` when the text side ends it."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules) -> None:
        self.text = bytearray()
        self.stop_type: StopType = "none"
        self.stopping_word = ""
        self.met_stop_word = False
        self.has_new_line = False
        self._tokenizer = tokenizer
        self._rules = rules
        self._stops = tuple((word, word.encode()) for word in rules.stop)
        self._num_sent = 0
        self._line_start = 0

    def add(self, token: int, elapsed_ms: float) -> bytes | None:
        """Take one sampled token, ``elapsed_ms`` after the first one.

        Returns the text to send now, often empty; None while the last character is incomplete.
        """
        is_end = token in self._tokenizer.eog_ids
        piece = self._piece(token)
        self.text += piece
        sent = None
        if complete_len(self.text) == len(self.text):
            sent = self._take(len(piece), is_end)
        self._check_indent()
        self._check_time(piece if sent is None else sent, elapsed_ms)
        if is_end:
            self.stop_type = "eos"
        return sent

    def _piece(self, token: int) -> bytes:
        special = self._rules.show_special or token in self._rules.preserved_tokens
        return self._tokenizer.piece(token, special)

    def _take(self, piece_len: int, is_end: bool) -> bytes:
        start = min(self._num_sent, len(self.text))
        unsent = bytes(self.text[start:])
        if self._stops:
            cut = self._find_stop(unsent, piece_len)
            if cut >= 0:
                del self.text[start + cut :]
                unsent = unsent[:cut]
            elif not is_end and any(ends_with_start_of(unsent, word) for _, word in self._stops):
                return b""
        self._num_sent += len(unsent)
        return unsent

    def _find_stop(self, unsent: bytes, piece_len: int) -> int:
        """Where the earliest stop string begins, or -1; of several at one place the first listed wins."""
        best = -1
        for name, word in self._stops:
            at = unsent.find(word, max(len(unsent) - len(word) - piece_len, 0))
            if at >= 0 and (best < 0 or at < best):
                best = at
                self.stop_type, self.stopping_word, self.met_stop_word = "word", name, True
        return best

    def _check_indent(self) -> None:
        needed = self._rules.n_indent
        if needed <= 0 or not self.has_new_line:
            return
        if self._line_start > 0:
            line = self.text[self._line_start :]
            indent = len(line) - len(line.lstrip(b" \t"))
            if indent < len(line) and indent < needed:
                self.stop_type = "limit"
                del self.text[self._line_start + indent :]
        line_end = self.text.find(b"\n", self._line_start)
        if line_end >= 0:
            self._line_start = line_end + 1

    def _check_time(self, text: bytes, elapsed_ms: float) -> None:
        if b"\n" not in text:
            return
        self.has_new_line = True
        if 0 < self._rules.t_max_predict_ms < elapsed_ms:
            self.stop_type = "limit"


def complete_len(text: bytes | bytearray) -> int:
    """The length of ``text`` without a cut last character; other invalid bytes count as complete."""
    size = len(text)
    if size and text[-1] < 0x80:
        return size  # most tokens end so
    for back in range(1, min(4, size) + 1):
        byte = text[size - back]
        needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 0
        if back < needed:
            return size - back
    return size


def ends_with_start_of(text: bytes, word: bytes) -> bool:
    """Some suffix of ``text`` is a prefix of ``word``."""
    return any(text.endswith(word[:size]) for size in range(min(len(text), len(word)), 0, -1))
