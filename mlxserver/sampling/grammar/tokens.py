"""A vocabulary as llguidance wants it."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from mlxserver.sampling.vocabulary import Vocabulary


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Special tokens have no text for a grammar; it has to name them. Takes a tenth of a second and more."""
    source = _Source(vocabulary)
    end = sorted(vocabulary.eog_ids) or [vocabulary.n_vocab]
    return LLTokenizer(TokenizerWrapper(source), n_vocab=len(source.tokens), eos_token=end)


class _Source:
    """What llguidance's wrapper reads. A vocabulary without an end token gets one without a logit."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        known = range(vocabulary.n_vocab)
        self.tokens = [vocabulary.piece(token) for token in known]
        self.special_token_ids = [token for token in known if vocabulary.is_special(token)]
        if not vocabulary.eog_ids:
            self.special_token_ids.append(len(self.tokens))
            self.tokens.append(b"<end>")
        self.eos_token_id = min(vocabulary.eog_ids, default=vocabulary.n_vocab)
        self.bos_token_id = vocabulary.bos_id if vocabulary.bos_id >= 0 else None

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace"), parse_special=False)
