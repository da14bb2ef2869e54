from __future__ import annotations

import pytest

from mlxserver.models.tokenizer.vocabulary import CONTROL, NORMAL, SPACE, Vocabulary
from mlxserver.models.tokenizer.wordpiece import WordPieceEncoder

UNK, CLS = 0, 1
WORDS = ["un", "unable", "hello", "café", "cafe", "東", ".", "~", "ok", "ᄒ"]
PIECES = ["able", "un", "s", "ᅡ", "ᆫ"]


def encoder(**options: bool) -> tuple[WordPieceEncoder, Vocabulary]:
    texts = ["[UNK]", "[CLS]", *(SPACE + word for word in WORDS), *PIECES]
    vocab = Vocabulary(texts, [CONTROL] * 2 + [NORMAL] * (len(texts) - 2))
    return WordPieceEncoder(vocab, UNK, **options), vocab


def texts_of(text: str, parse_special: bool = True, **options: bool) -> list[str]:
    encode, vocab = encoder(**options)
    return [vocab.texts[token] for token in encode.encode(text, parse_special)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("unable", [f"{SPACE}unable"]),
        ("unun", [f"{SPACE}un", "un"]),
        ("unables", [f"{SPACE}unable", "s"]),
        ("HELLO\t hello", [f"{SPACE}hello", f"{SPACE}hello"]),
        ("hello.~ok", [f"{SPACE}hello", f"{SPACE}.", f"{SPACE}~", f"{SPACE}ok"]),
        ("ok東ok", [f"{SPACE}ok", f"{SPACE}東", f"{SPACE}ok"]),
        ("he\u200bl\u0000lo", [f"{SPACE}hello"]),
        ("Café", [f"{SPACE}cafe"]),
        ("한", [f"{SPACE}ᄒ", "ᅡ", "ᆫ"]),
        ("", []),
        (" \n", []),
    ],
)
def test_words_and_their_pieces(text: str, wanted: list[str]) -> None:
    assert texts_of(text) == wanted


def test_a_word_that_cannot_be_covered_is_unknown_as_a_whole() -> None:
    assert texts_of("unx ok") == ["[UNK]", f"{SPACE}ok"]
    assert texts_of("able") == ["[UNK]"]


def test_special_tokens_are_parsed_on_request() -> None:
    assert texts_of("[CLS]ok") == ["[CLS]", f"{SPACE}ok"]
    assert texts_of("[CLS]ok", parse_special=False)[0] == "[UNK]"


def test_a_cased_vocabulary_keeps_case_and_accents() -> None:
    assert texts_of("Café café", lowercase=False, strip_accents=False) == ["[UNK]", f"{SPACE}café"]
