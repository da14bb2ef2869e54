"""Where one request is in its grammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from mlxserver.sampling.grammar.trigger_pattern import compiled, find_first
from mlxserver.sampling.params import Grammar, SamplerError, Trigger
from mlxserver.sampling.vocabulary import Vocabulary


class GrammarState:
    """Lives on the engine thread. Errors are kept for ``check``: they concern no other row of the batch."""

    def __init__(
        self, grammar: Grammar, matcher: LLMatcher, tokenizer: LLTokenizer, vocabulary: Vocabulary
    ) -> None:
        """Raises SamplerError for a bad trigger."""
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._piece = vocabulary.piece
        self._eog_ids = vocabulary.eog_ids
        self._waiting = LazyStart(grammar.triggers) if grammar.lazy else None
        self._ended = False
        """An end token was taken: whatever is sampled ahead of its being noticed does not matter."""
        self._error = ""

    @property
    def is_active(self) -> bool:
        """Whether it forbids anything: a lazy grammar does not before its trigger."""
        return self._waiting is None

    @property
    def is_done(self) -> bool:
        """The text is complete and nothing can follow it."""
        return self.is_active and self._matcher.is_stopped()

    def forced_end(self, forbidden: frozenset[int]) -> int:
        """The token that ends a complete text where all end tokens are ``forbidden`` otherwise; else -1."""
        return min(self._eog_ids) if self.is_done and self._eog_ids and self._eog_ids <= forbidden else -1

    def fill(self, mask: NDArray[np.int32]) -> None:
        """One bit a token, the lowest bit of the first word for token 0; only once it is active."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        count = min(len(words), len(mask))
        mask[:count] = words[:count]
        mask[count:] = 0
        if self._matcher.is_error():
            self._fail(self._matcher.get_error())

    def accept(self, token: int) -> None:
        if self._waiting is None:
            self._consume([token], self._piece(token))
            return
        try:
            replay = self._waiting.accept(token, self._piece(token))
        except SamplerError as error:
            self._fail(str(error))
            return
        if replay is None:
            return
        self._waiting = None
        for number, piece in replay:
            whole = piece == self._piece(number)
            self._consume([number] if whole else self._tokens_of(piece), piece)

    def check(self) -> None:
        """Raises SamplerError once the grammar cannot go on."""
        if self._error:
            raise SamplerError(self._error)

    def _consume(self, tokens: Sequence[int], piece: bytes) -> None:
        if self._ended or self._error:
            return
        if tokens[0] in self._eog_ids and (self._matcher.is_stopped() or self._matcher.is_accepting()):
            self._ended = True
        elif not self._matcher.consume_tokens(list(tokens)):
            text = piece.decode("utf-8", "replace")
            self._fail(f"Unexpected empty grammar stack after accepting piece: {text} ({tokens[0]})")

    def _tokens_of(self, piece: bytes) -> list[int]:
        try:
            return list(self._tokenizer.greedy_tokenize(piece.decode()))
        except UnicodeDecodeError:
            return list(self._tokenizer.tokenize_bytes(piece))

    def _fail(self, error: str) -> None:
        self._error = self._error or error


class LazyStart:
    """Waits for the first trigger of a lazy grammar in the tokens of an answer."""

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self._tokens = {trigger.token for trigger in triggers if trigger.kind == "token"}
        self._patterns = [compiled(trigger) for trigger in triggers if trigger.kind != "token"]
        self._text = b""
        self._pieces: list[tuple[int, int]] = []
        """(token, where its text ends)."""

    def accept(self, token: int, piece: bytes) -> list[tuple[int, bytes]] | None:
        """What the grammar starts with, once it does: tokens, each with its text or the rest of it."""
        if token in self._tokens:
            return [(token, piece)]
        self._text += piece
        self._pieces.append((token, len(self._text)))
        start = find_first(self._patterns, self._text)
        return None if start is None else self._since(start)

    def _since(self, start: int) -> list[tuple[int, bytes]]:
        begins = [0, *(end for _, end in self._pieces)]
        return [
            (token, self._text[max(begin, start) : end])
            for begin, (token, end) in zip(begins, self._pieces, strict=False)
            if end > start
        ]
